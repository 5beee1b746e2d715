/*
 * The ledger's eyes: in this build every taking and releasing of a lock is noted.
 *
 * The compiler includes this file before each source of hz (CMakeLists.txt), so no line of hz
 * knows of it, and a build without it is the same as before. A lock is named by the file and the
 * words by which it is taken: "span.c: &bin->lock". What does not stand in a header is wrapped by
 * the linker, see wraps.c.
 */
#ifndef HZ_LEDGER_H
#define HZ_LEDGER_H

#include "../src/lock.h"

#pragma GCC visibility push(hidden)

/* The calling thread has a lock; it began to wait at `since`, 0: it did not wait. */
void hz_ledger_taken(const hz_lock *lock, const char *name, uint64_t since);
/* It is about to release it. */
void hz_ledger_releases(const hz_lock *lock);
/* It found the lock held. It waits next, or does without. */
void hz_ledger_missed(const hz_lock *lock, const char *name);
/* A counter of the processor that goes at a constant rate, or nanoseconds. */
uint64_t hz_ledger_ticks(void);

#pragma GCC visibility pop

/* The start of what is to be counted, or its end: then the file is written. For the program. */
void hz_ledger_window(bool begins);

static inline bool hz_ledger_try(hz_lock *lock, const char *name)
{
    const bool is_taken = hz_lock_try(lock);
    if (is_taken)
        hz_ledger_taken(lock, name, 0);
    else
        hz_ledger_missed(lock, name);
    return is_taken;
}

/* After a miss, as depot.c does; `wait` is one of the two ways of lock.c. */
static inline void hz_ledger_wait(hz_lock *lock, const char *name, void (*wait)(hz_lock *))
{
    const uint64_t since = hz_ledger_ticks();
    wait(lock);
    hz_ledger_taken(lock, name, since);
}

static inline void hz_ledger_take(hz_lock *lock, const char *name)
{
    if (!hz_ledger_try(lock, name)) hz_ledger_wait(lock, name, hz_lock_wait);
}

static inline void hz_ledger_release(hz_lock *lock)
{
    hz_ledger_releases(lock);
    hz_lock_release(lock);
}

/* lock.c itself, and the ledger, use the names as they are. */
#ifndef HZ_LEDGER_UNSEEN
#define hz_lock_try(lock) hz_ledger_try((lock), __FILE__ ": " #lock)
#define hz_lock_take(lock) hz_ledger_take((lock), __FILE__ ": " #lock)
#define hz_lock_wait(lock) hz_ledger_wait((lock), __FILE__ ": " #lock, (hz_lock_wait))
#define hz_lock_wait_spinning(lock)                                                                \
    hz_ledger_wait((lock), __FILE__ ": " #lock, (hz_lock_wait_spinning))
#define hz_lock_release(lock) hz_ledger_release(lock)
#endif

#endif
