/*
 * Stamps: see log_format.h. A stamp is read after everything that stands before it in the program
 * has happened, so that stamps of two threads are in the order in which blocks went between them.
 */
#ifndef HZ_TRACE_CLOCK_H
#define HZ_TRACE_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "log_format.h"

static inline uint64_t hz_clock_monotonic_ns(clockid_t clock)
{
    struct timespec now = {0};
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline uint64_t hz_counter(void)
{
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtscp" : "=a"(low), "=d"(high) : : "rcx", "memory");
    return (uint64_t)high << 32 | low;
#elif defined(__aarch64__)
    uint64_t value;
    __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(value) : : "memory");
    return value;
#else
    return 0;
#endif
}

/* The time now, by HZ_CLOCK_COUNTER or HZ_CLOCK_RAW. */
static inline uint64_t hz_stamp(uint32_t clock)
{
    if (__builtin_expect(clock == HZ_CLOCK_COUNTER, 1)) return hz_counter();
    return hz_clock_monotonic_ns(CLOCK_MONOTONIC_RAW);
}

#endif
