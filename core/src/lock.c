/*
 * A lock of one word, and two ways to wait for it.
 *
 * hz has its own because it needs one that is four bytes, needs no initialisation, can be reset in
 * the child of a fork, and counts how often it was contended.
 */
#include "internal.h"
#include "os.h"

enum { SPINS_BEFORE_SLEEP = 100, SPINS_BEFORE_YIELD = 32 };

/* Sections under these locks take well under a microsecond, so a short spin often saves two system
 * calls. */
HZ_SLOW void hz_lock_wait(hz_lock *lock)
{
    hz_count(HZ_STAT_lock_contended, 1);
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        if (hz_atomic_peek(&lock->word) == 0 && hz_lock_try(lock)) return;
        hz_os_pause();
    }
    while (hz_atomic_swap(&lock->word, 2) != 0) hz_os_sleep_while(&lock->word, 2);
}

HZ_SLOW void hz_lock_wait_spinning(hz_lock *lock)
{
    hz_count(HZ_STAT_lock_contended, 1);
    for (int i = 1;; i++) {
        if (hz_atomic_peek(&lock->word) == 0 && hz_lock_try(lock)) return;
        if (i % SPINS_BEFORE_YIELD == 0) hz_os_yield();
        hz_os_pause();
    }
}

HZ_SLOW void hz_lock_wake(hz_lock *lock)
{
    hz_os_wake_one(&lock->word);
}
