/*
 * Large blocks: whole runs of pages, straight from the page pool, which also is their cache. No
 * magazine or depot lies between, so each free of one is a slow call: free.c and alloc.c tick after
 * it (decay.c), with no lock held, and there pages go back to the system.
 */
#include <errno.h>

#include "internal.h"
#include "os.h"

enum { MOVE_PAGES = 16 }; /* from here on a growing block's pages are moved: 1 MiB */

static size_t size_pages(size_t size)
{
    return (size + HZ_PAGE_BYTES - 1) >> HZ_PAGE_SHIFT;
}

/* Clears a run by a purge, if it is longer than max_dirty_bytes: writing the zeroes takes longer.
 * False if it may hold other bytes still. */
static bool clear_by_system(const hz_page_info *run)
{
    unsigned char *at = hz_info_address(run);
    size_t left = (size_t)run->pages << HZ_PAGE_SHIFT;
    const size_t most = hz_purge_part_pages(run->pages) << HZ_PAGE_SHIFT;
    if (left <= hz_max_dirty_bytes() || left <= HZ_PURGE_BYTES) return false;
    for (size_t part; left > 0; left -= part, at += part) {
        part = left < most ? left : most;
        if (!hz_os_purge(at, part)) return false;
    }
    return true;
}

/* `size` is at most PTRDIFF_MAX, `align` a power of two. */
void *hz_large_alloc(size_t size, size_t align, bool *zeroed)
{
    size_t align_pages = align <= HZ_PAGE_BYTES ? 1 : align >> HZ_PAGE_SHIFT;
    hz_page_info *run =
        hz_guard_pages_alloc(size == 0 ? 1 : size_pages(size), align_pages, hz_heap_node(), zeroed);
    if (run == NULL) return NULL;
    if (zeroed != NULL && !*zeroed) *zeroed = clear_by_system(run);
    void *block = hz_info_address(run);
    run->class_ = HZ_CLASS_LARGE;
    run->shard = HZ_SHARDS_MAX;
    if (hz_is_fenced()) hz_guard_fence(block, size);
    hz_entry_set(hz_entry_at(block), hz_class_step(HZ_CLASS_LARGE, 0), block);
    hz_count(HZ_STAT_large_allocs, 1);
    return block;
}

void hz_large_free(void *block, bool is_clean)
{
    if (!hz_entry_take(hz_entry_at(block))) hz_die("a block was freed twice", block);
    if (is_clean)
        hz_pages_free_clean(hz_info_at(block));
    else
        hz_pages_free(hz_info_at(block));
}

/* A run that shrinks by more than an eighth gives pages back. */
bool hz_large_resize(void *block, size_t size)
{
    hz_page_info *run = hz_info_at(block);
    size_t pages = size_pages(size);
    if (pages > run->pages) {
        if (!hz_pages_resize(run, pages)) return false;
        hz_count(HZ_STAT_large_grown_in_place, 1);
        return true;
    }
    if (pages < run->pages - run->pages / 8) (void)hz_pages_resize(run, pages);
    return true;
}

bool hz_large_grow_at_last(void *block, size_t size)
{
    return hz_pages_grow_at_last(hz_info_at(block), size_pages(size));
}

/*
 * Moves the pages where that is cheaper than a copy: mostly not if the target is resident, as then
 * neither the copy nor the growth faults pages in. Measured, in microseconds, for a block of
 *
 *                            256 KiB   1 MiB   16 MiB   256 MiB
 *     copy to fresh pages        101     450     6100     98000
 *     copy to resident pages       3      20      730     15000
 *     move                         6       9       85       960
 *
 * And each moved block costs the kernel a mapping (move.c).
 */
void *hz_large_move(void *block, size_t size)
{
    bool is_clean;
    const int saved = errno;
    const hz_page_info *run = hz_info_at(block);
    void *fresh = hz_large_alloc(size, HZ_GRANULE_BYTES, &is_clean);
    if (fresh == NULL) return NULL;
    const bool is_moved =
        is_clean && run->pages >= MOVE_PAGES && hz_run_move(run, hz_info_at(fresh));
    if (is_moved)
        hz_count(HZ_STAT_large_moved, 1);
    else
        memcpy(fresh, block, (size_t)run->pages << HZ_PAGE_SHIFT);
    hz_large_free(block, is_moved);
    errno = saved;
    return fresh;
}

size_t hz_large_bytes(const void *block)
{
    return (size_t)hz_info_at(block)->pages << HZ_PAGE_SHIFT;
}
