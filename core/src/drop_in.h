/*
 * The C library's names for hz's hottest functions, in libhz.so and libhz.a. Each name is an alias,
 * so a call of malloc needs no jump to hz_malloc. libhz_prefixed.a has none of these names.
 */
#ifndef HZ_DROP_IN_H
#define HZ_DROP_IN_H

#ifdef HZ_DROP_IN
#define HZ_DROP_IN_NAME(name, function)                                                            \
    extern __typeof(function) name __attribute__((visibility("default"), used, alias(#function)))
/* A linker takes an object file from libhz.a only if that file defines a missing symbol. This
 * refers to `name`, so that malloc brings along its other names; else the C library's malloc would
 * come with them. */
#define HZ_DROP_IN_WITH(name)                                                                      \
    extern const char name;                                                                        \
    static const char *const with_##name __attribute__((used)) = &name
#else
#define HZ_DROP_IN_NAME(name, function) _Static_assert(true, "no drop-in")
#define HZ_DROP_IN_WITH(name) _Static_assert(true, "no drop-in")
#endif

#endif
