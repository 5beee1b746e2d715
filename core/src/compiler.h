/*
 * What hz asks of the compiler: which functions are inlined, and which branch is the likely one.
 */
#ifndef HZ_COMPILER_H
#define HZ_COMPILER_H

/* HZ_FAST functions are inlined into the entry points and hold no #if; HZ_SLOW ones never are. */
#define HZ_FAST static inline __attribute__((always_inline))
#define HZ_SLOW __attribute__((noinline, cold))
#define HZ_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define HZ_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#endif
