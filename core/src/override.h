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

/* From libstdc++ or libc++, if the program has one. A static program with operator new has one. */
#ifdef HZ_STATIC
#define OF_CXX
#else
#define OF_CXX __attribute__((weak))
#endif
typedef void (*hz_new_handler)(void);
OF_CXX hz_new_handler _ZSt15get_new_handlerv(void);
OF_CXX void _ZSt17__throw_bad_allocv(void);

/* What a weak reference names; where that came later, with a plugin: it is looked up. */
static inline void *hz_of_cxx(void *known, const char *name)
{
#ifdef HZ_STATIC
    (void)name;
#else
    if (known != NULL) return known;
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) library = dlopen("libc++.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library != NULL) known = dlsym(library, name);
    if (library != NULL) (void)dlclose(library);
#endif
    return known;
}

static inline hz_new_handler hz_new_handler_now(void)
{
    void *get = hz_of_cxx((void *)_ZSt15get_new_handlerv, "_ZSt15get_new_handlerv");
    return get != NULL ? ((hz_new_handler(*)(void))get)() : NULL;
}

static inline void hz_throw_bad_alloc(void)
{
    void *raise = hz_of_cxx((void *)_ZSt17__throw_bad_allocv, "_ZSt17__throw_bad_allocv");
    if (raise != NULL) ((void (*)(void))raise)();
}

#endif
