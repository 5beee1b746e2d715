/*
 * Large blocks: whole runs of pages, straight from the page heap, which also is their cache.
 */
#include "internal.h"

static size_t pages_for(size_t size)
{
    return (size + HZ_PAGE_BYTES - 1) >> HZ_PAGE_SHIFT;
}

/* `size` is at most PTRDIFF_MAX, `align` a power of two. */
void *hz_large_alloc(size_t size, size_t align, bool *zeroed)
{
    size_t align_pages = align <= HZ_PAGE_BYTES ? 1 : align >> HZ_PAGE_SHIFT;
    hz_span *run = hz_guard_pages_alloc(size == 0 ? 1 : pages_for(size), align_pages, zeroed);
    if (run == NULL) return NULL;
    void *block = hz_page_address((size_t)(run - hz_map.spans));
    run->class_ = HZ_CLASS_LARGE;
    run->shard = HZ_SHARDS_MAX;
    hz_page_set(hz_page_at(block), hz_class_step(HZ_CLASS_LARGE, 0), block);
    hz_count(HZ_STAT_large_allocs, 1);
    return block;
}

void hz_large_free(void *block)
{
    if (!hz_page_take(hz_page_at(block))) hz_die("a block was freed twice", block);
    hz_pages_free(&hz_map.spans[hz_page_of(block)]);
}

/* A run that shrinks to less than half gives pages back; a run in use is never resized below the
 * largest class. */
bool hz_large_resize(void *block, size_t size)
{
    hz_span *run = &hz_map.spans[hz_page_of(block)];
    size_t pages = pages_for(size);
    if (pages > run->pages) {
        if (!hz_pages_resize(run, pages)) return false;
        hz_count(HZ_STAT_large_grown_in_place, 1);
        return true;
    }
    if (pages < run->pages / 2 + 1) hz_pages_resize(run, pages);
    return true;
}

size_t hz_large_bytes(const void *block)
{
    return (size_t)hz_map.spans[hz_page_of(block)].pages << HZ_PAGE_SHIFT;
}
