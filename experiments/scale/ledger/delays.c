/*
 * Delays on purpose, see delays.h. A delay sleeps, so that the CPU is free for the other threads.
 */
#include "delays.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../src/atomic.h"
#include "variables.h"

enum { HOLD_EVERY = 1000, US_PER_S = 1000000, NS_PER_US = 1000 };

static uint64_t call_us, hold_us, hold_every = HOLD_EVERY;
static _Atomic uint64_t holds, delayed_calls, delayed_holds;

void hz_ledger_delays_begin(void)
{
    call_us = hz_ledger_number_of("HZ_LEDGER_CALL_US", 0);
    hold_us = hz_ledger_number_of("HZ_LEDGER_HOLD_US", 0);
    hold_every = hz_ledger_number_of("HZ_LEDGER_HOLD_EVERY", HOLD_EVERY);
    if (hold_every == 0) hold_every = 1;
}

/* The system is asked without the C library, in which a sleep is a place where a thread may be
 * cancelled: no malloc is one. */
static void sleep_us(uint64_t us, _Atomic uint64_t *count)
{
    const int saved = errno;
    const struct timespec span = {(time_t)(us / US_PER_S), (long)(us % US_PER_S * NS_PER_US)};
    (void)syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &span, NULL);
    hz_atomic_add(count, 1);
    errno = saved;
}

void hz_ledger_delay_call(void)
{
    if (call_us > 0) sleep_us(call_us, &delayed_calls);
}

void hz_ledger_delay_hold(void)
{
    if (hold_us == 0) return;
    const uint64_t before = hz_atomic_add(&holds, 1);
    if (before % hold_every == hold_every - 1) sleep_us(hold_us, &delayed_holds);
}

uint64_t hz_ledger_delayed_calls(void)
{
    return hz_atomic_peek(&delayed_calls);
}

uint64_t hz_ledger_delayed_holds(void)
{
    return hz_atomic_peek(&delayed_holds);
}
