/*
 * System calls past the C library. A preloaded library may stand before the C library's functions
 * and allocate in its own, as libfaketime, libfakechroot and libsocket_wrapper do: so hz calls none
 * of them while it holds a lock, or before it has started, but those that only compute (mem...,
 * str...).
 */
#ifndef HZ_OS_CALL_H
#define HZ_OS_CALL_H

#include <sys/syscall.h>

enum { HZ_OS_CALL_WORDS = 6 };

#pragma GCC visibility push(hidden)

/* The result is the kernel's: below 0 it is the negative errno. The thread's errno stays. */
long hz_os_call(long number, const long words[HZ_OS_CALL_WORDS]);
#define HZ_OS_CALL(number, ...) hz_os_call((number), (const long[HZ_OS_CALL_WORDS]){__VA_ARGS__})

#pragma GCC visibility pop

#endif
