/*
 * Freeing: a block of the thread's own shard first, then everything else.
 *
 * What class it is comes from the entry of its page: few lines for much memory, so that they stay
 * in the first cache, since all that follows waits for it. The entry tells, too, whether a block
 * starts there, and one comparison, for which nothing but a branch waits, asks for that and for
 * room in the magazine: where the block will be put is the address of one that was taken from
 * there, which is more than the distance of any block and less than that of anything else; or, at
 * the magazine's end, NULL.
 *
 * The block's seal is written and not read: a free that reads a block which has left the caches
 * cannot retire before the block is there, while a write waits aside. So a second free is seen when
 * the block would be given out again; with double_free=at_call all frees take the way that looks
 * twice, and read.
 */
#include <hz/hz.h>

#include <errno.h>

#include "internal.h"

static void free_slow(void *block);

/* Puts a block into the magazine; false when there is no room, or it is none. */
HZ_FAST bool free_own(hz_heap *heap, void *block, const hz_page *page, bool reads)
{
    const uint64_t step = hz_atomic_peek(&page->step);
    hz_stack *stack = hz_stack_at(heap, hz_step_stack(step));
    void **top = stack->top;
    if (HZ_UNLIKELY(hz_distance(page, step, block) >= (uintptr_t)*top)) return false;
    if (reads && HZ_UNLIKELY(hz_is_sealed(block))) return false;
    hz_seal(block);
    *top = block;
    stack->top = top + 1;
    return true;
}

/*
 * The granule before a block, whose page's entry the fast paths ask. Where a page begins, a block
 * of a class hardly ever does, but a large one may have, and be freed for the second time: what
 * lies before the first block of a span, and as far from it as another one, the entry does not know
 * from a block. It is nobody's memory, and seen as none when it comes back to its span.
 */
HZ_FAST const void *before(const void *block)
{
    return (const unsigned char *)block - HZ_GRANULE_BYTES;
}

void hz_free(void *block)
{
    const hz_page *page = hz_page_under(before(block), hz_map.direct_mask);
    if (HZ_UNLIKELY(!free_own(hz_heap_mine, block, page, false))) free_slow(block);
}

/* ---- the magazine is full, there is none, or the block is not live --------------------------- */

static void free_to_class(void *block, uint32_t class_)
{
    hz_heap *heap = hz_heap_mine;
    if (heap == &hz_heap_none) heap = hz_heap_enter();
    if (heap == &hz_heap_none)
        hz_depot_give(hz_span_of(block)->shard, class_, &block, 1);
    else
        hz_magazine_push(heap, class_, block);
}

/* Seals a live block and returns its class; does not return for anything else. */
static uint32_t retire(void *block)
{
    uint32_t class_ = hz_class_of_live(block);
    if (HZ_UNLIKELY(class_ == HZ_CLASS_NONE)) {
        hz_die(hz_granule_of(block) >= hz_map.granules
                   ? "free of a pointer that hz did not allocate"
                   : "free of a pointer that is no live block (freed twice?)",
               block);
    }
    if (class_ != HZ_CLASS_LARGE) hz_seal(block);
    return class_;
}

static void free_to_its_class(void *block)
{
    int saved = errno;
    uint32_t class_ = retire(block);
    if (class_ == HZ_CLASS_LARGE)
        hz_large_free(block);
    else
        free_to_class(block, class_);
    errno = saved;
}

/* ---- frees that must be looked at: several shards, deferred, or read at the call ------------- */

/* Looks a block up and puts it where it belongs. */
static void free_sorted(hz_heap *heap, void *block)
{
    uint32_t class_ = retire(block);
    if (HZ_UNLIKELY(class_ == HZ_CLASS_LARGE)) {
        hz_large_free(block);
    } else if (hz_map.spans[hz_page_of(block)].shard == heap->shard) {
        hz_magazine_push(heap, class_, block);
    } else {
        hz_remote_push(heap, class_, block);
    }
}

void hz_free_deferred(hz_heap *heap)
{
    uint32_t count = heap->deferred_count;
    heap->deferred_count = 0;
    for (uint32_t i = 0; i < count; i++) free_sorted(heap, heap->deferred[i]);
}

static void free_defer(hz_heap *heap, void *block)
{
    heap->deferred[heap->deferred_count++] = block;
    if (heap->deferred_count < (uint32_t)hz_cfg.defer_free) return;
    hz_count(HZ_STAT_defer_batches, 1);
    hz_free_deferred(heap);
}

/* NULL, deferred, of another shard, by a thread without a heap, or nothing of ours. */
__attribute__((noinline)) static void free_elsewhere(void *block)
{
    if (block == NULL) return;
    int saved = errno;
    hz_heap *heap = hz_heap_mine;
    if (HZ_UNLIKELY(heap == &hz_heap_none)) heap = hz_heap_enter();
    if (HZ_UNLIKELY(heap == &hz_heap_none))
        free_to_its_class(block);
    else if (heap->deferred != NULL)
        free_defer(heap, block);
    else
        free_sorted(heap, block);
    errno = saved;
}

HZ_FAST bool is_of_shard(const void *block, uint32_t shard)
{
    const size_t page = hz_page_of(block);
    return page < hz_map.granules >> HZ_PAGE_GRANULES_SHIFT &&
           hz_atomic_peek(&hz_page_at(block)->step) != 0 && hz_map.spans[page].shard == shard;
}

/* The fast path where there are several shards, or blocks are to be read: one or two more looks. */
HZ_FAST void free_looking(void *block)
{
    hz_heap *heap = hz_heap_mine;
    const bool reads = hz_cfg.double_free == HZ_DOUBLE_FREE_AT_CALL;
    if (HZ_UNLIKELY(hz_cfg.defer_free > 0) ||
        (hz_map.shards > 1 && !is_of_shard(block, heap->shard)) ||
        HZ_UNLIKELY(!free_own(heap, block, hz_page_at(before(block)), reads)))
        free_elsewhere(block);
}

__attribute__((noinline)) static void free_slow(void *block)
{
    if (HZ_UNLIKELY(hz_map.direct_mask == 0))
        free_looking(block);
    else if (block != NULL)
        free_to_its_class(block);
}

/* ---- sizes ---------------------------------------------------------------------------------- */

size_t hz_usable_size(const void *block)
{
    uint32_t class_ = hz_class_of_live(block);
    return class_ == HZ_CLASS_LARGE ? hz_large_bytes(block) : hz_class_bytes[class_];
}

HZ_DROP_IN_NAME(free, hz_free);
HZ_DROP_IN_NAME(__libc_free, hz_free);
HZ_DROP_IN_NAME(cfree, hz_free);
