/*
 * Taking and releasing a lock where no thread waits; lock.c is what happens where one must.
 */
#ifndef HZ_LOCK_H
#define HZ_LOCK_H

#include "atomic.h"
#include "heap.h"

#define HZ_LOCK_SLEEPERS ((uintptr_t)1) /* bit of its word: a thread sleeps until the release */

#pragma GCC visibility push(hidden)

void hz_lock_wait(hz_lock *lock);
void hz_lock_wait_spinning(hz_lock *lock);
void hz_lock_wake(hz_lock *lock);
/* In the child of a fork: releases a lock that is held by a thread which the child does not have;
 * true if it was. */
bool hz_lock_inherit(hz_lock *lock);

#pragma GCC visibility pop

/* A number that no other living thread has. It stays the same in the child of a fork. */
HZ_FAST uintptr_t hz_lock_me(void)
{
    return (uintptr_t)&hz_heap_mine;
}
_Static_assert(_Alignof(hz_heap *) % 2 == 0, "hz_lock_me leaves HZ_LOCK_SLEEPERS clear");

HZ_FAST bool hz_lock_try(hz_lock *lock)
{
    uintptr_t expected = 0;
    return hz_atomic_replace(&lock->word, &expected, hz_lock_me());
}

HZ_FAST void hz_lock_take(hz_lock *lock)
{
    if (HZ_UNLIKELY(!hz_lock_try(lock))) hz_lock_wait(lock);
}

HZ_FAST void hz_lock_release(hz_lock *lock)
{
    if (HZ_UNLIKELY((hz_atomic_swap(&lock->word, 0) & HZ_LOCK_SLEEPERS) != 0)) hz_lock_wake(lock);
}

#endif
