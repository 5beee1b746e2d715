/*
 * A lock of one word, and two ways to wait for it.
 *
 * hz has its own because it needs one that is small, needs no initialisation, tells in the child of
 * a fork which thread holds it, and counts how often it was contended. One word both is the lock
 * and names its holder: a fork could come between the writes of two words.
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
    hz_fork_notice();
    for (;;) {
        uintptr_t word = hz_atomic_peek(&lock->word);
        const uintptr_t wanted = (word == 0 ? hz_lock_me() : word) | HZ_LOCK_SLEEPERS;
        if (word != wanted && !hz_atomic_replace(&lock->word, &word, wanted)) continue;
        if (word == 0) return; /* others may still sleep, and the word says so */
        hz_os_sleep_while(&lock->low, (uint32_t)wanted);
    }
}

HZ_SLOW void hz_lock_wait_spinning(hz_lock *lock)
{
    hz_count(HZ_STAT_lock_contended, 1);
    for (int i = 1;; i++) {
        if (hz_atomic_peek(&lock->word) == 0 && hz_lock_try(lock)) return;
        hz_os_pause();
        if (i % SPINS_BEFORE_YIELD != 0) continue;
        hz_fork_notice();
        hz_os_yield();
    }
}

HZ_SLOW void hz_lock_wake(hz_lock *lock)
{
    hz_os_wake_one(&lock->low);
}

bool hz_lock_inherit(hz_lock *lock)
{
    const uintptr_t word = hz_atomic_peek(&lock->word);
    if (word == 0 || (word & ~HZ_LOCK_SLEEPERS) == hz_lock_me()) return false;
    hz_atomic_put(&lock->word, 0);
    return true;
}
