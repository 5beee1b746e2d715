/*
 * Delays on purpose: what the other threads meet when one that holds a lock is taken off its CPU,
 * and when the system takes long to answer.
 *
 * HZ_LEDGER_CALL_US       each system call of hz takes so many microseconds more
 * HZ_LEDGER_HOLD_US       a thread sleeps so long while it holds a lock, as if it were preempted:
 * HZ_LEDGER_HOLD_EVERY    once in so many holds, of all threads together (1000 if it is not set)
 */
#ifndef HZ_LEDGER_DELAYS_H
#define HZ_LEDGER_DELAYS_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Reads the variables. */
void hz_ledger_delays_begin(void);
/* To be called inside a system call of hz, and while a lock is held. */
void hz_ledger_delay_call(void);
void hz_ledger_delay_hold(void);
/* How many system calls and holds were made longer. */
uint64_t hz_ledger_delayed_calls(void);
uint64_t hz_ledger_delayed_holds(void);

#pragma GCC visibility pop

#endif
