/*
 * Freeing: a block of the thread's own shard first, then everything else.
 *
 * One load, of the tag, tells the class of the block and whether it is a live block at all:
 * whatever is not goes, as a class whose magazine is always full, the same way as a full magazine
 * does. The block itself is not touched.
 */
#include <hz/hz.h>

#include <errno.h>

#include "internal.h"

HZ_SLOW static void free_slow(void *block, uint32_t tag);
__attribute__((noinline)) static void free_outside(void *block);

void hz_free(void *block)
{
    hz_heap *heap = hz_heap_mine;
    size_t granule = hz_granule_of(block);
    if (HZ_UNLIKELY(granule >= hz_map.direct_granules)) {
        free_outside(block);
        return;
    }
    uint32_t tag = hz_map.page_tags[granule >> HZ_PAGE_GRANULES_SHIFT];
    void **top = heap->top[tag];
    if (HZ_UNLIKELY(top == heap->limit[tag] || hz_map.tags[granule] != tag)) {
        free_slow(block, hz_map.tags[granule]);
        return;
    }
    *top = block;
    heap->top[tag] = top + 1;
    hz_map.tags[granule] = HZ_TAG_NONE;
}

/* ---- the magazine is full, or there is none ------------------------------------------------- */

static void free_to_class(void *block, uint32_t class_)
{
    hz_heap *heap = hz_heap_mine;
    hz_tag_set(block, HZ_TAG_NONE);
    if (heap == &hz_heap_none) heap = hz_heap_enter();
    if (heap == &hz_heap_none)
        hz_depot_give(hz_span_of(block)->shard, class_, &block, 1);
    else
        hz_magazine_push(heap, class_, block);
}

static void free_slow(void *block, uint32_t tag)
{
    int saved = errno;
    if (tag == HZ_TAG_NONE) hz_die("free of a pointer that is no live block (freed twice?)", block);
    if (tag == HZ_TAG_LARGE)
        hz_large_free(block);
    else
        free_to_class(block, tag);
    errno = saved;
}

/* ---- frees that must be looked at: several shards, or deferred ------------------------------- */

/* Looks a block up and puts it where it belongs. */
HZ_FAST void free_sorted(hz_heap *heap, void *block)
{
    size_t granule = hz_granule_of(block);
    uint32_t tag = hz_map.tags[granule];
    if (HZ_UNLIKELY(tag == HZ_TAG_NONE || tag == HZ_TAG_LARGE)) {
        free_slow(block, tag);
        return;
    }
    hz_map.tags[granule] = HZ_TAG_NONE;
    if (hz_map.page_shards[granule >> HZ_PAGE_GRANULES_SHIFT] == heap->shard) {
        hz_magazine_push(heap, tag, block);
    } else {
        hz_remote_push(heap, tag, block);
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

static void free_indirect(void *block)
{
    hz_heap *heap = hz_heap_mine;
    if (HZ_UNLIKELY(heap == &hz_heap_none)) heap = hz_heap_enter();
    if (HZ_UNLIKELY(heap == &hz_heap_none))
        free_slow(block, hz_map.tags[hz_granule_of(block)]);
    else if (heap->deferred != NULL)
        free_defer(heap, block);
    else
        free_sorted(heap, block);
}

/* NULL, a block of an arena whose frees must be looked at, or nothing of ours. */
static void free_outside(void *block)
{
    if (block == NULL) return;
    if (HZ_UNLIKELY(hz_granule_of(block) >= hz_map.granules)) {
        hz_die("free of a pointer that hz did not allocate", block);
    }
    int saved = errno;
    free_indirect(block);
    errno = saved;
}

/* ---- sizes ---------------------------------------------------------------------------------- */

size_t hz_usable_size(const void *block)
{
    size_t granule = hz_granule_of(block);
    if (block == NULL || granule >= hz_map.granules) return 0;
    uint32_t tag = hz_map.tags[granule];
    if (tag == HZ_TAG_LARGE) return hz_large_bytes(block);
    return tag == HZ_TAG_NONE ? 0 : hz_class_bytes[tag];
}
