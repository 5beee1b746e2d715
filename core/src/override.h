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

/* From libstdc++ or libc++, if the program has one. A static program with operator new has one. */
#ifdef HZ_STATIC
#define OF_CXX
#else
#define OF_CXX __attribute__((weak))
#endif
typedef void (*hz_new_handler)(void);
OF_CXX hz_new_handler _ZSt15get_new_handlerv(void);
OF_CXX void _ZSt17__throw_bad_allocv(void);

/* Compares through a variable, as compilers warn of a test that is always true. */
static inline hz_new_handler hz_new_handler_now(void)
{
    hz_new_handler (*const volatile get)(void) = _ZSt15get_new_handlerv;
    return get != NULL ? get() : NULL;
}

static inline void hz_throw_bad_alloc(void)
{
    void (*const volatile throw_it)(void) = _ZSt17__throw_bad_allocv;
    if (throw_it != NULL) throw_it();
}

#endif
