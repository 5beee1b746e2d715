/*
 * Logging an event: a few instructions, no lock, no table, no call into the C library.
 *
 * A thread fills a leaf of the pool. What it has written is complete as soon as `used` of the leaf
 * counts it, and the pool outlives the process: a crash or `_exit` loses nothing. Only when a leaf
 * is full does a thread take another one.
 */
#ifndef HZ_RECORDER_LOG_H
#define HZ_RECORDER_LOG_H

#include <string.h>

#include "../clock.h"
#include "../log_format.h"

#define HZ_LIKELY(condition) __builtin_expect((condition), 1)
#define HZ_UNLIKELY(condition) __builtin_expect((condition), 0)
#define HZ_INLINED static inline __attribute__((always_inline))

/* What follows is of this library alone: it is found without the loader's table. */
#pragma GCC visibility push(hidden)

/* What a thread knows of its log. */
typedef struct hz_thread_log {
    hz_leaf *leaf;       /* that it fills; NULL: none yet, or nothing is logged */
    uint64_t stamp;      /* of its last event */
    uintptr_t newest;    /* address of the last block that it logged as given */
    uint32_t life;       /* value of *hz_life when it took the leaf; after a fork that is another */
    uint32_t thread;     /* its number in the pool */
    uint32_t leaf_count; /* leaves that it has taken */
    uint32_t shares;     /* next events that may share the last stamp: see hz_log_pass */
    bool is_busy;        /* it writes an event: a signal handler must not */
} hz_thread_log;

extern _Thread_local hz_thread_log hz_log __attribute__((tls_model("initial-exec")));

/* A number that the kernel makes 0 in a forked child. */
extern const volatile uint32_t *hz_life;

/* Only one thread of this process has logged so far. */
extern atomic_bool hz_log_is_alone;

extern uint32_t hz_log_clock; /* HZ_CLOCK_... of the pool */

/* Returns a leaf of this thread's that has room for an event; NULL: nothing is to be logged. */
hz_leaf *hz_log_leaf(hz_thread_log *log);

/* Counts an event that cannot be logged. */
void hz_log_lose(void);

enum { HZ_LOG_SHARES = 7 };

/*
 * Whether an event may share the last stamp. Most of what an event costs is reading the clock. As
 * long as one thread alone logs, its order is that of its log, and stamps only tell the time:
 * events that follow one stamped soon after another share its stamp. A second thread ends that
 * before it logs its first event, and what a thread knows of another's blocks it has learned later:
 * every stamp that decides an order is its event's own.
 */
HZ_INLINED bool hz_log_shares(hz_thread_log *log)
{
    if (log->shares == 0 || !atomic_load_explicit(&hz_log_is_alone, memory_order_relaxed))
        return false;
    log->shares--;
    return true;
}

/* Takes a stamp, and returns the units since the last one. */
HZ_INLINED uint64_t hz_log_pass(hz_thread_log *log, uint32_t clock)
{
    const uint64_t stamp = hz_stamp(clock);
    const uint64_t delta = stamp - log->stamp;
    if (HZ_UNLIKELY((int64_t)delta < 0)) return 0;
    log->stamp = stamp;
    log->shares = delta >> HZ_LOG_DELTA_BITS == 0 ? HZ_LOG_SHARES : 0;
    return delta;
}

/* Writes an event; the leaf has room for it. */
HZ_INLINED void hz_log_write(hz_leaf *leaf, unsigned kind, uint64_t address, uint64_t size,
                             uint64_t delta)
{
    const unsigned used = atomic_load_explicit(&leaf->head.used, memory_order_relaxed);
    unsigned char *at = leaf->events + used;
    if (HZ_UNLIKELY(delta >> (HZ_LOG_DELTA_BITS + HZ_LOG_DELTA_MORE_BITS) != 0)) {
        const uint64_t time = HZ_LOG_TIME | delta << HZ_LOG_KIND_BITS;
        memcpy(at, &time, sizeof time);
        at += sizeof time;
        delta = 0;
    }
    const unsigned code = 0u + (size != 0) + (size >> 8 != 0) + (size >> 16 != 0);
    const unsigned size_bytes = hz_log_size_bytes(code);
    const uint64_t more = delta >> HZ_LOG_DELTA_BITS;
    const uint64_t head = kind | (uint64_t)code << HZ_LOG_SIZE_CODE_AT |
                          (uint64_t)(more != 0) << HZ_LOG_MORE_AT |
                          (delta & ((1u << HZ_LOG_DELTA_BITS) - 1)) << HZ_LOG_DELTA_AT |
                          address << (HZ_LOG_ADDRESS_AT - HZ_LOG_ADDRESS_SHIFT);
    const uint64_t tail = size | more << (8 * size_bytes);
    memcpy(at, &head, sizeof head);
    memcpy(at + sizeof head, &tail, sizeof tail);
    at += sizeof head + size_bytes + (more != 0 ? 2 : 0);
    atomic_store_explicit(&leaf->head.used, (unsigned)(at - leaf->events), memory_order_release);
}

/* The same, with a stamp of the kernel's clock. */
void hz_log_write_slow(hz_thread_log *log, hz_leaf *leaf, unsigned kind, uint64_t address,
                       uint64_t size);

HZ_INLINED void hz_log_put(hz_thread_log *log, hz_leaf *leaf, unsigned kind, uint64_t address,
                           uint64_t size)
{
    if (HZ_LIKELY(hz_log_shares(log)))
        hz_log_write(leaf, kind, address, size, 0);
    else if (HZ_LIKELY(hz_log_clock == HZ_CLOCK_COUNTER))
        hz_log_write(leaf, kind, address, size, hz_log_pass(log, HZ_CLOCK_COUNTER));
    else
        hz_log_write_slow(log, leaf, kind, address, size);
}

/* Logs an event about a block, or a thread; `size` may have an alignment in it. */
HZ_INLINED void hz_log_event(unsigned kind, const void *block, uint64_t size)
{
    const uint64_t address = (uintptr_t)block;
    const uint64_t strange =
        address & ~(((UINT64_C(1) << 47) - 1) >> HZ_LOG_ADDRESS_SHIFT << HZ_LOG_ADDRESS_SHIFT);
    hz_thread_log *log = &hz_log;
    hz_leaf *leaf = log->leaf;
    if (HZ_UNLIKELY(log->is_busy || strange != 0)) {
        hz_log_lose();
        return;
    }
    log->is_busy = true;
    atomic_signal_fence(memory_order_seq_cst);
    if (HZ_UNLIKELY(leaf == NULL || log->life != *hz_life ||
                    atomic_load_explicit(&leaf->head.used, memory_order_relaxed) >
                        sizeof leaf->events - HZ_LOG_EVENT_MAX_BYTES))
        leaf = hz_log_leaf(log);
    if (HZ_LIKELY(leaf != NULL)) {
        hz_log_put(log, leaf, kind, address, size);
        if (kind <= HZ_LOG_MOVED) log->newest = address;
    }
    atomic_signal_fence(memory_order_seq_cst);
    log->is_busy = false;
}

#pragma GCC visibility pop

#endif
