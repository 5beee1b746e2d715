/*
 * Macros for the files that define names of other libraries.
 */
#ifndef HZ_OVERRIDE_H
#define HZ_OVERRIDE_H

/* Each of these is a definition of a name that is declared elsewhere, or, for C++, nowhere in C. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"

#define DROP_IN __attribute__((visibility("default"), used))
#if defined(__has_attribute) && __has_attribute(copy)
#define SAME_AS(name) __attribute__((visibility("default"), used, alias(#name), copy(name)))
#else
#define SAME_AS(name) __attribute__((visibility("default"), used, alias(#name)))
#endif

#include <dlfcn.h>

/* What a reference names that libstdc++ or libc++ fills. A static program with operator new has one
 * of them; another may have none, or one that came later, with a plugin: there it is looked up. */
#ifdef HZ_STATIC
#define OF_CXX
#define HZ_OF_CXX(name) ((void *)(name))
#else
#define OF_CXX __attribute__((weak))
#define HZ_OF_CXX(name) ((void *)(name) != NULL ? (void *)(name) : hz_found_in_cxx(#name))
static inline void *hz_found_in_cxx(const char *name)
{
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) library = dlopen("libc++.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) return NULL;
    void *found = dlsym(library, name);
    (void)dlclose(library);
    return found;
}
#endif
typedef void (*hz_new_handler)(void);
OF_CXX hz_new_handler _ZSt15get_new_handlerv(void);
OF_CXX void _ZSt17__throw_bad_allocv(void);

static inline hz_new_handler hz_new_handler_now(void)
{
    void *get = HZ_OF_CXX(_ZSt15get_new_handlerv);
    return get != NULL ? ((hz_new_handler(*)(void))get)() : NULL;
}

static inline void hz_throw_bad_alloc(void)
{
    void *raise = HZ_OF_CXX(_ZSt17__throw_bad_allocv);
    if (raise != NULL) ((void (*)(void))raise)();
}

#endif
