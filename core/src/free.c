/*
 * Freeing: a block of the thread's own shard first, then everything else.
 *
 * What class it is comes from the entry of its page: few lines for much memory, so that they stay
 * in the first cache, since all that follows waits for it. The entry tells, too, whether a block
 * starts there; nothing but a branch that is never taken waits for that. The block's seal is
 * written and not read: a free that reads a block which has left the caches cannot retire before
 * the block is there, while a write waits aside. So a second free is seen when the block would be
 * given out again; with double_free=at_call all frees take the way that looks twice, and read.
 */
#include <hz/hz.h>

#include <errno.h>

#include "internal.h"

static void free_slow(void *block);
static void free_looking(void *block);

HZ_FAST void free_own(hz_heap *heap, void *block, size_t granule, bool reads)
{
    const hz_page *page = hz_page_at(granule);
    hz_stack *stack = hz_stack_at(heap, page->stack);
    void **top = stack->top;
    if (HZ_UNLIKELY(top == stack->limit || !hz_is_start(page, granule) ||
                    (reads && hz_bears(block, stack->seal)))) {
        free_slow(block);
        return;
    }
    hz_put_seal(block, stack->seal);
    *top = block;
    stack->top = top + 1;
}

void hz_free(void *block)
{
    hz_heap *heap = hz_heap_mine;
    size_t granule = hz_granule_of(block);
    if (HZ_LIKELY(granule < hz_map.direct_granules))
        free_own(heap, block, granule, false);
    else
        free_looking(block);
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
        hz_die("free of a pointer that is no live block (freed twice?)", block);
    }
    if (class_ != HZ_CLASS_LARGE) hz_seal(block, class_);
    return class_;
}

HZ_SLOW static void free_slow(void *block)
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
    } else if (hz_map.pages[hz_page_of(block)].shard == heap->shard) {
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
    if (HZ_UNLIKELY(hz_granule_of(block) >= hz_map.granules)) {
        hz_die("free of a pointer that hz did not allocate", block);
    }
    int saved = errno;
    hz_heap *heap = hz_heap_mine;
    if (HZ_UNLIKELY(heap == &hz_heap_none)) heap = hz_heap_enter();
    if (HZ_UNLIKELY(heap == &hz_heap_none))
        free_slow(block);
    else if (heap->deferred != NULL)
        free_defer(heap, block);
    else
        free_sorted(heap, block);
    errno = saved;
}

/* The fast path where there are several shards, or blocks are to be read: one or two more looks. */
__attribute__((noinline)) static void free_looking(void *block)
{
    hz_heap *heap = hz_heap_mine;
    size_t granule = hz_granule_of(block);
    if (HZ_LIKELY(granule < hz_map.home_granules && hz_page_at(granule)->shard == heap->shard))
        free_own(heap, block, granule, hz_cfg.double_free == HZ_DOUBLE_FREE_AT_CALL);
    else
        free_elsewhere(block);
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
