/*
 * A bounded mailbox: many senders, one receiver, no locks.
 *
 * Every cell carries a sequence number: `n` when it is free for the n-th message, `n + 1` when that
 * message is in it. A sender reserves the next cell with one compare-and-swap (a plain store when
 * it is the only sender), the receiver needs none, and an empty mailbox costs one load of a line
 * that only changes when a message comes.
 */
#ifndef HZ_BENCH_MAILBOX_H
#define HZ_BENCH_MAILBOX_H

#include "bench.h"

/* A block on its way. */
typedef struct hz_letter {
    void *block;   /* not NULL */
    uint32_t size; /* as requested */
} hz_letter;

typedef struct hz_mailbox_cell {
    _Atomic uint64_t sequence; /* see above */
    void *block;               /* the message */
    uint32_t size;             /* the message */
} hz_mailbox_cell;

typedef struct hz_mailbox {
    _Alignas(HZ_LINE) _Atomic uint64_t tail; /* messages that were reserved */
    bool sole_sender;                        /* whether only one worker ever sends */
    _Alignas(HZ_LINE) uint64_t head;         /* messages that were received */
    uint64_t mask;                           /* cells less one; a power of two less one */
    hz_mailbox_cell *cells;                  /* the ring */
} hz_mailbox;

/* Makes `box` ready for `capacity` messages, a power of two. */
static inline void hz_mailbox_init(hz_mailbox *box, size_t capacity, bool sole_sender)
{
    box->cells = hz_harness_alloc(capacity * sizeof(hz_mailbox_cell));
    box->mask = capacity - 1;
    box->sole_sender = sole_sender;
    for (size_t i = 0; i < capacity; i++)
        atomic_store_explicit(&box->cells[i].sequence, i, memory_order_relaxed);
}

/* Reserves the cell for the next message; NULL when the mailbox is full. */
static inline hz_mailbox_cell *hz_mailbox_reserve(hz_mailbox *box, uint64_t *place)
{
    uint64_t tail = atomic_load_explicit(&box->tail, memory_order_relaxed);
    for (;;) {
        hz_mailbox_cell *cell = &box->cells[tail & box->mask];
        const int64_t ahead =
            (int64_t)(atomic_load_explicit(&cell->sequence, memory_order_acquire) - tail);
        *place = tail;
        if (ahead < 0) return NULL;
        if (ahead > 0) {
            tail = atomic_load_explicit(&box->tail, memory_order_relaxed);
        } else if (box->sole_sender) {
            atomic_store_explicit(&box->tail, tail + 1, memory_order_relaxed);
            return cell;
        } else if (atomic_compare_exchange_weak_explicit(
                       &box->tail, &tail, tail + 1, memory_order_relaxed, memory_order_relaxed)) {
            return cell;
        }
    }
}

/* Posts a message; false when the mailbox is full. */
static inline bool hz_mailbox_send(hz_mailbox *box, hz_letter letter)
{
    uint64_t place;
    hz_mailbox_cell *cell = hz_mailbox_reserve(box, &place);
    if (HZ_UNLIKELY(cell == NULL)) return false;
    cell->block = letter.block;
    cell->size = letter.size;
    atomic_store_explicit(&cell->sequence, place + 1, memory_order_release);
    return true;
}

/* Takes the oldest message; false when there is none. */
static inline bool hz_mailbox_receive(hz_mailbox *box, hz_letter *letter)
{
    hz_mailbox_cell *cell = &box->cells[box->head & box->mask];
    if (HZ_LIKELY(atomic_load_explicit(&cell->sequence, memory_order_acquire) != box->head + 1))
        return false;
    *letter = (hz_letter){cell->block, cell->size};
    atomic_store_explicit(&cell->sequence, box->head + box->mask + 1, memory_order_release);
    box->head++;
    return true;
}

#endif
