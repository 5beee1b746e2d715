/*
 * How players hand blocks to each other: bounded mailboxes without locks.
 *
 * Every cell carries a sequence number: `n` when it is free for the n-th message, `n + 1` when that
 * message is in it. A sender reserves the next cell with one compare-and-swap (a plain store when
 * it is the only sender); a sole receiver needs none, and an empty mailbox costs it one load of a
 * line that only changes when a message comes.
 *
 * The loop is closed: a block whose addressee's mailbox is full stays with its sender, which does
 * nothing else until it is sent, except emptying its own mailbox.
 */
#ifndef HZ_BENCH_MAILBOX_H
#define HZ_BENCH_MAILBOX_H

#include "blocks.h"

typedef struct hz_mailbox_cell {
    _Atomic uint32_t sequence; /* see above; it wraps around */
    uint32_t size;             /* of the block */
    void *block;               /* the message */
} hz_mailbox_cell;

typedef struct hz_mailbox {
    _Alignas(HZ_LINE) hz_mailbox_cell *cells; /* the ring */
    uint32_t mask;                            /* cells less one; a power of two less one */
    bool sole_sender;                         /* whether only one player ever sends */
    _Alignas(HZ_LINE) _Atomic uint32_t tail;  /* messages that were reserved */
    _Alignas(HZ_LINE) _Atomic uint32_t head;  /* messages that were received */
    hz_mailbox_cell *awaited;                 /* a sole receiver's: where the next one will be */
} hz_mailbox;

/* `count` mailboxes for at least `capacity` blocks each. */
static inline hz_mailbox *hz_mailboxes_new(size_t count, size_t capacity, bool sole_sender)
{
    hz_mailbox *boxes = hz_harness_alloc(count * sizeof *boxes);
    const uint32_t cells = (uint32_t)hz_power_of_two(capacity < 2 ? 2 : capacity);
    for (size_t i = 0; i < count; i++) {
        boxes[i].cells = boxes[i].awaited = hz_harness_alloc(cells * sizeof(hz_mailbox_cell));
        boxes[i].mask = cells - 1;
        boxes[i].sole_sender = sole_sender;
        for (uint32_t j = 0; j < cells; j++)
            atomic_store_explicit(&boxes[i].cells[j].sequence, j, memory_order_relaxed);
    }
    return boxes;
}

/* --- sending --------------------------------------------------------------------------------- */

/* Reserves the cell for message number *place; NULL when the mailbox is full. */
static inline hz_mailbox_cell *hz_mailbox_reserve(hz_mailbox *box, uint32_t *place)
{
    uint32_t tail = atomic_load_explicit(&box->tail, memory_order_relaxed);
    for (;;) {
        hz_mailbox_cell *cell = &box->cells[tail & box->mask];
        const int32_t ahead =
            (int32_t)(atomic_load_explicit(&cell->sequence, memory_order_acquire) - tail);
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

/* Sends a block; false when the mailbox is full. Not inlined: loops that send do other things, too.
 */
static __attribute__((noinline, unused)) bool hz_mailbox_send(hz_mailbox *box, hz_block block)
{
    uint32_t place;
    hz_mailbox_cell *cell = hz_mailbox_reserve(box, &place);
    if (HZ_UNLIKELY(cell == NULL)) return false;
    cell->block = block.at;
    cell->size = block.size;
    atomic_store_explicit(&cell->sequence, place + 1, memory_order_release);
    return true;
}

/* Whether a message would find no room. For mailboxes with one sender. */
static inline bool hz_mailbox_is_full(hz_mailbox *box)
{
    const uint32_t tail = atomic_load_explicit(&box->tail, memory_order_relaxed);
    return atomic_load_explicit(&box->cells[tail & box->mask].sequence, memory_order_acquire) !=
           tail;
}

/* Sends a block, or keeps it as unsent and returns false. */
static inline bool hz_post(hz_player *p, hz_mailbox *to, hz_block block)
{
    if (HZ_LIKELY(hz_mailbox_send(to, block))) return true;
    p->unsent = (hz_unsent){block, to};
    return false;
}

/* Sends what is unsent, if anything; false when it still has to wait. */
static inline bool hz_post_again(hz_player *p)
{
    if (HZ_LIKELY(p->unsent.block.at == NULL)) return true;
    if (!hz_mailbox_send(p->unsent.to, p->unsent.block)) return false;
    p->unsent.block.at = NULL;
    return true;
}

/* --- receiving ------------------------------------------------------------------------------- */

/* Whether there is a block to receive. For mailboxes with one receiver, as is the next. */
static inline bool hz_mailbox_has_some(hz_mailbox *box)
{
    const uint32_t head = atomic_load_explicit(&box->head, memory_order_relaxed);
    return atomic_load_explicit(&box->awaited->sequence, memory_order_acquire) == head + 1;
}

/* Takes the oldest block; false when there is none. */
static inline bool hz_mailbox_receive(hz_mailbox *box, hz_block *block)
{
    if (!hz_mailbox_has_some(box)) return false;
    const uint32_t head = atomic_load_explicit(&box->head, memory_order_relaxed);
    hz_mailbox_cell *cell = box->awaited;
    *block = (hz_block){cell->block, cell->size};
    atomic_store_explicit(&cell->sequence, head + box->mask + 1, memory_order_release);
    atomic_store_explicit(&box->head, head + 1, memory_order_relaxed);
    box->awaited = &box->cells[(head + 1) & box->mask];
    return true;
}

/* The same for mailboxes with many receivers. */
static inline bool hz_mailbox_receive_shared(hz_mailbox *box, hz_block *block)
{
    uint32_t head = atomic_load_explicit(&box->head, memory_order_relaxed);
    for (;;) {
        hz_mailbox_cell *cell = &box->cells[head & box->mask];
        const int32_t ahead =
            (int32_t)(atomic_load_explicit(&cell->sequence, memory_order_acquire) - head - 1);
        if (ahead < 0) return false;
        if (ahead > 0) {
            head = atomic_load_explicit(&box->head, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak_explicit(
                       &box->head, &head, head + 1, memory_order_relaxed, memory_order_relaxed)) {
            *block = (hz_block){cell->block, cell->size};
            atomic_store_explicit(&cell->sequence, head + box->mask + 1, memory_order_release);
            return true;
        }
    }
}

/* Frees what others have sent. Not inlined: loops that look into a mailbox mostly find nothing. */
static __attribute__((noinline, unused)) void hz_empty_inbox(hz_player *p)
{
    for (hz_block block; hz_mailbox_receive(p->inbox, &block);) hz_give(p, block);
}

/* Steps in which each operation is a call of `play`, which is false when the player has to wait. */
#define HZ_PLAY_AND_POST(name, play)                                                               \
    static size_t name(hz_player *p, size_t most)                                                  \
    {                                                                                              \
        void *const state = p->state;                                                              \
        size_t done = 0;                                                                           \
        if (p->inbox != NULL) hz_empty_inbox(p);                                                   \
        if (HZ_UNLIKELY(!hz_post_again(p))) return 0;                                              \
        while (done < most) {                                                                      \
            done++;                                                                                \
            if (HZ_UNLIKELY(!play(p, state))) break;                                               \
        }                                                                                          \
        return done;                                                                               \
    }

#endif
