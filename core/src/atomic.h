/*
 * Atomic access, by intent. This is the only file that names a memory order. `hz_atomic_` is for
 * objects that are _Atomic, `hz_plain_` for others; of both, peek and poke are relaxed, get and put
 * ordered.
 */
#ifndef HZ_ATOMIC_H
#define HZ_ATOMIC_H

#include <stdatomic.h>
#include <stdint.h>

/* A value that another thread may be writing; any recent version will do (counters, hints). */
#define hz_atomic_peek(object) atomic_load_explicit((object), memory_order_relaxed)
#define hz_atomic_poke(object, value) atomic_store_explicit((object), (value), memory_order_relaxed)

/* `value` plus the object, which stays. It is read after all that `value` was computed from: its
 * writer writes in the opposite order. x86 reads in order and adds in one instruction, but no
 * compiler makes that of an atomic read. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
static inline uint64_t hz_atomic_peek_plus(const _Atomic uint64_t *object, uint64_t value)
{
    __asm__("addq %1, %0" : "+r"(value) : "m"(*object));
    return value;
}
#else
static inline uint64_t hz_atomic_peek_plus(const _Atomic uint64_t *object, uint64_t value)
{
    atomic_thread_fence(memory_order_acquire);
    return value + hz_atomic_peek(object);
}
#endif

/* `value` masked by a recent value of the object, which stays; in one instruction on x86, too. The
 * only such object is hz_map.entry_mask. A thread that has a block's address got it from the thread
 * that cut the block, so it reads the mask of that time or a later one, and both find the block's
 * entry. For any other address the entry is read at a place that depends on the mask that was read,
 * and no processor reads it before. */
#ifdef __x86_64__
static inline uint64_t hz_atomic_peek_and(const _Atomic uint64_t *object, uint64_t value)
{
    __asm__("andq %1, %0" : "+r"(value) : "m"(*object) : "cc");
    return value;
}
#else
static inline uint64_t hz_atomic_peek_and(const _Atomic uint64_t *object, uint64_t value)
{
    return value & hz_atomic_peek(object);
}
#endif

/* The same for a plain word: the parameters that may change while the process runs. */
#define hz_plain_peek(object) __atomic_load_n((object), __ATOMIC_RELAXED)
#define hz_plain_poke(object, value) __atomic_store_n((object), (value), __ATOMIC_RELAXED)

/* Reads a plain word that its owner may be writing at the same time, as the fast paths do. What the
 * owner wrote before it can be read afterwards. The sanitizer cannot know that this is intended. */
#define hz_plain_get(object) __atomic_load_n((object), __ATOMIC_ACQUIRE)

#define hz_plain_replace(object, expected, value)                                                  \
    __atomic_compare_exchange_n((object), (expected), (value), false, __ATOMIC_ACQ_REL,            \
                                __ATOMIC_ACQUIRE)

/* Writes a plain word after all earlier writes, as the child of a fork may find any instant. */
#define hz_plain_put(object, value) __atomic_store_n((object), (value), __ATOMIC_RELEASE)
/* The same, and before all that is written after. */
#define hz_plain_swap(object, value) __atomic_exchange_n((object), (value), __ATOMIC_ACQ_REL)

/* Publishing: what was written before a put is seen by a thread that gets the value put. */
#define hz_atomic_get(object) atomic_load_explicit((object), memory_order_acquire)
#define hz_atomic_put(object, value) atomic_store_explicit((object), (value), memory_order_release)

/* Counting without order between the counters. */
#define hz_atomic_add(object, value)                                                               \
    atomic_fetch_add_explicit((object), (value), memory_order_relaxed)

/* Swapping a lock word or a stack head: acquires on success what its last owner released. */
#define hz_atomic_swap(object, value)                                                              \
    atomic_exchange_explicit((object), (value), memory_order_acq_rel)
#define hz_atomic_replace(object, expected, value)                                                 \
    atomic_compare_exchange_strong_explicit((object), (expected), (value), memory_order_acq_rel,   \
                                            memory_order_acquire)

#endif
