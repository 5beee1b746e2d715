/*
 * Blocks of other shards: collected in the thread's ring, and handed over in groups, each under one
 * synchronisation.
 *
 * remote_grouping says how a full ring is split: one block at a time (`none`); one group for each
 * shard, of mixed classes, into that shard's inbox (`shard`), which sorts it into its depots when
 * one of them runs dry; or one group for each shard and class, straight into the depot
 * (`shard_class`). An item is the block's address with its class and shard in the top bytes, so that
 * sorting needs no look-up.
 */
#include <errno.h>

#include "internal.h"

enum { SHARD_SHIFT = 48, CLASS_SHIFT = 56, SORT_KEYS = 64, RING_BYTES = 256 << 10 };
_Static_assert((int)HZ_SHARDS_MAX <= (int)SORT_KEYS && (int)HZ_CLASS_NUMBERS <= (int)SORT_KEYS,
               "sort keys");
_Static_assert(HZ_ADDRESS_MAX <= UINT64_C(1) << SHARD_SHIFT && (int)SORT_KEYS <= UINT8_MAX,
               "an item holds an address, a shard and a class");

static void *item_block(const void *item)
{
    return (void *)((uintptr_t)item & ((UINT64_C(1) << SHARD_SHIFT) - 1));
}

static uint32_t item_class(const void *item)
{
    return (uint32_t)((uintptr_t)item >> CLASS_SHIFT);
}

static uint32_t item_shard(const void *item)
{
    return (uint8_t)((uintptr_t)item >> SHARD_SHIFT);
}

/* ---- sorting -------------------------------------------------------------------------------- */

/* One stable pass of a radix sort: `from` into `to`, by `key`, which is below SORT_KEYS. */
static void sort_pass(void *const *from, void **to, size_t count, uint32_t (*key)(const void *))
{
    uint32_t at[SORT_KEYS + 1] = {0};
    for (size_t i = 0; i < count; i++) at[key(from[i]) + 1]++;
    for (size_t k = 0; k < SORT_KEYS; k++) at[k + 1] += at[k];
    for (size_t i = 0; i < count; i++) to[at[key(from[i])]++] = from[i];
}

static size_t group_length(void *const *items, size_t count, uint32_t (*key)(const void *))
{
    size_t length = 1;
    while (length < count && key(items[length]) == key(items[0])) length++;
    return length;
}

static void count_group(size_t blocks)
{
    hz_count(HZ_STAT_handed_groups, 1);
    hz_count(HZ_STAT_handed_blocks, blocks);
}

/* Gives blocks of one shard, sorted by class, to its depots; the items lose their classes. */
static size_t give_by_class(uint32_t shard, void **items, size_t count)
{
    size_t groups = 0;
    for (size_t at = 0, length; at < count; at += length, groups++) {
        uint32_t class_ = item_class(items[at]);
        length = group_length(items + at, count - at, item_class);
        for (size_t i = at; i < at + length; i++) items[i] = item_block(items[i]);
        hz_depot_give(shard, class_, items + at, length);
    }
    return groups;
}

/* ---- inboxes -------------------------------------------------------------------------------- */

/* Takes as many items as fit; returns how many. */
static size_t inbox_put(hz_inbox *inbox, void *const *items, size_t count)
{
    hz_lock_take(&inbox->lock);
    if (inbox->blocks == NULL) inbox->blocks = hz_meta_alloc(HZ_INBOX_BLOCKS * sizeof(void *));
    const uint32_t waiting = hz_atomic_peek(&inbox->count);
    const size_t room = inbox->blocks == NULL ? 0 : HZ_INBOX_BLOCKS - waiting;
    if (count > room) count = room;
    if (count > 0) memcpy(inbox->blocks + waiting, items, count * sizeof(void *));
    hz_atomic_put(&inbox->count, waiting + (uint32_t)count); /* after the items */
    hz_lock_release(&inbox->lock);
    return count;
}

void hz_remote_drain_inbox(hz_heap *heap)
{
    hz_inbox *inbox = &hz_shards[heap->shard].inbox;
    size_t part = (size_t)hz_cfg.remote_ring_size;
    if (heap->ring == NULL || hz_atomic_peek(&inbox->count) == 0) return;
    hz_lock_take(&inbox->lock);
    uint32_t waiting = hz_atomic_peek(&inbox->count);
    if (part > waiting) part = waiting;
    hz_atomic_poke(&inbox->count, waiting - (uint32_t)part);
    memcpy(heap->ring_inbox, inbox->blocks + waiting - part, part * sizeof(void *));
    hz_lock_release(&inbox->lock);
    hz_count(HZ_STAT_inbox_drains, 1);
    sort_pass(heap->ring_inbox, heap->ring_scratch, part, item_class);
    give_by_class(heap->shard, heap->ring_scratch, part);
}

/* ---- handing over --------------------------------------------------------------------------- */

static void hand_over_singly(void **items, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *block = item_block(items[i]);
        count_group(1);
        hz_depot_give(item_shard(items[i]), item_class(items[i]), &block, 1);
    }
}

static void hand_over_to_inbox(uint32_t shard, void **items, size_t count, void **scratch)
{
    count_group(count);
    size_t taken = inbox_put(&hz_shards[shard].inbox, items, count);
    if (taken == count) return;
    sort_pass(items + taken, scratch, count - taken, item_class);
    give_by_class(shard, scratch, count - taken);
}

static void hand_over_to_depots(uint32_t shard, void **items, size_t count)
{
    size_t groups = give_by_class(shard, items, count);
    hz_count(HZ_STAT_handed_groups, groups);
    hz_count(HZ_STAT_handed_blocks, count);
}

static void hand_over_by_shard(hz_heap *heap, size_t count)
{
    void **items = heap->ring, **sorted = heap->ring_scratch;
    if (hz_cfg.remote_grouping == HZ_REMOTE_GROUPING_SHARD_CLASS) {
        sort_pass(items, sorted, count, item_class);
        items = heap->ring_scratch;
        sorted = heap->ring;
    }
    sort_pass(items, sorted, count, item_shard);
    for (size_t at = 0, length; at < count; at += length) {
        uint32_t shard = item_shard(sorted[at]);
        length = group_length(sorted + at, count - at, item_shard);
        if (hz_cfg.remote_grouping == HZ_REMOTE_GROUPING_SHARD_CLASS) {
            hand_over_to_depots(shard, sorted + at, length);
        } else {
            hand_over_to_inbox(shard, sorted + at, length, items);
        }
    }
}

void hz_remote_flush(hz_heap *heap)
{
    size_t count = heap->ring_count;
    heap->ring_count = 0;
    heap->ring_bytes = 0;
    if (count == 0) return;
    if (hz_cfg.remote_grouping == HZ_REMOTE_GROUPING_NONE)
        hand_over_singly(heap->ring, count);
    else
        hand_over_by_shard(heap, count);
}

/* ---- looking for a block -------------------------------------------------------------------- */

__attribute__((no_sanitize("thread"))) static bool items_hold(void *const *items, size_t count,
                                                              const void *block)
{
    for (size_t i = 0; i < count; i++) {
        if (item_block(hz_plain_get(&items[i])) == block) return true;
    }
    return false;
}

__attribute__((no_sanitize("thread"))) bool hz_remote_holds(const hz_heap *heap, const void *block)
{
    const uint32_t count = hz_plain_get(&heap->ring_count);
    return heap->ring != NULL && count <= (uint32_t)hz_cfg.remote_ring_size &&
           items_hold(heap->ring, count, block);
}

bool hz_inbox_holds(uint32_t shard, const void *block)
{
    hz_inbox *inbox = &hz_shards[shard].inbox;
    hz_lock_take(&inbox->lock);
    const bool is_held = items_hold(inbox->blocks, hz_atomic_peek(&inbox->count), block);
    hz_lock_release(&inbox->lock);
    return is_held;
}

/* ---- counting ------------------------------------------------------------------------------- */

__attribute__((no_sanitize("thread"))) static void items_count(void *const *items, size_t count,
                                                               size_t *blocks)
{
    for (size_t i = 0; i < count; i++) blocks[item_class(hz_plain_get(&items[i]))]++;
}

__attribute__((no_sanitize("thread"))) void hz_remote_count(const hz_heap *heap, size_t *blocks)
{
    const uint32_t count = hz_plain_get(&heap->ring_count);
    if (heap->ring != NULL && count <= (uint32_t)hz_cfg.remote_ring_size)
        items_count(heap->ring, count, blocks);
}

void hz_inbox_count(uint32_t shard, size_t *blocks)
{
    hz_inbox *inbox = &hz_shards[shard].inbox;
    hz_lock_take(&inbox->lock);
    items_count(inbox->blocks, hz_atomic_peek(&inbox->count), blocks);
    hz_lock_release(&inbox->lock);
}

/* ---- a heap's part -------------------------------------------------------------------------- */

size_t hz_remote_bytes(void)
{
    return hz_map.shards == 1 ? 0 : 3 * (size_t)hz_cfg.remote_ring_size * sizeof(void *);
}

void hz_remote_make(hz_heap *heap, void **memory)
{
    if (hz_map.shards == 1) return;
    heap->ring = memory;
    heap->ring_scratch = memory + hz_cfg.remote_ring_size;
    heap->ring_inbox = memory + 2 * hz_cfg.remote_ring_size;
}

/* A ring is full when its items are in use, or its blocks have RING_BYTES or thread_cache_bytes: no
 * thread can use the blocks that wait in it, and one that sleeps keeps them. */
static bool ring_is_full(const hz_heap *heap)
{
    return heap->ring_count == (uint32_t)hz_cfg.remote_ring_size ||
           heap->ring_bytes >= RING_BYTES ||
           heap->ring_bytes >= (size_t)hz_live(thread_cache_bytes);
}

/* Keeps errno, as a free does. */
static void hand_over_full(hz_heap *heap)
{
    const int saved = errno;
    hz_count(HZ_STAT_ring_full, 1);
    hz_remote_flush(heap);
    hz_tick_of_free(heap);
    errno = saved;
}

void hz_remote_push(hz_heap *heap, uint32_t class_, uint32_t shard, void *block)
{
    if (HZ_UNLIKELY(heap->ring == NULL)) { /* a thread without a heap */
        hz_depot_give(shard, class_, &block, 1);
        return;
    }
    heap->ring[heap->ring_count] = (void *)((uintptr_t)block | (uintptr_t)shard << SHARD_SHIFT |
                                            (uintptr_t)class_ << CLASS_SHIFT);
    hz_plain_put(&heap->ring_count, heap->ring_count + 1); /* after the item */
    heap->ring_bytes += hz_class_bytes[class_];
    if (HZ_UNLIKELY(ring_is_full(heap))) hand_over_full(heap);
}
