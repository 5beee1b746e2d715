/*
 * Moving the pages of a large block to another run: the kernel changes its page table, and no byte
 * is copied. It leaves a mapping without pages behind, which mlockall's lock has left, too: so that
 * range is mapped anew.
 *
 * Moved pages are a mapping of their own, which the kernel does not join with its neighbours. A
 * process may have 65,530 mappings: so at most RUNS_MOST moved runs exist at a time, and moved
 * pages that go back to the system are mapped anew, so that the kernel joins them again.
 */
#include "internal.h"
#include "os.h"

enum {
    MOVED = 1, /* a flag of a page: it is part of a mapping that was moved here */
    FIRST = 2, /* of the first page of one */
    RUNS_MOST = 8192,
    FLAGS_SHIFT = 16, /* pages whose flags are made at a time: 4 GiB */
    ARRAYS_MOST = 4096,
};

typedef unsigned char flag;

static struct {
    flag *_Atomic arrays[ARRAYS_MOST]; /* per page of the arena; made at need, and kept */
    _Atomic uint32_t runs;             /* pages with FIRST */
} moved;

/* The flags of a page; NULL: no page of its array was ever moved. */
static flag *flag_of(size_t page)
{
    const size_t array = page >> FLAGS_SHIFT;
    flag *flags = array < ARRAYS_MOST ? hz_atomic_get(&moved.arrays[array]) : NULL;
    return flags != NULL ? flags + (page & (((size_t)1 << FLAGS_SHIFT) - 1)) : NULL;
}

static bool array_make(size_t array)
{
    flag *none = NULL;
    if (array >= ARRAYS_MOST) return false;
    if (hz_atomic_get(&moved.arrays[array]) != NULL) return true;
    flag *fresh = hz_meta_alloc((size_t)1 << FLAGS_SHIFT);
    if (fresh != NULL) (void)hz_atomic_replace(&moved.arrays[array], &none, fresh);
    return fresh != NULL;
}

static bool flags_make(size_t first, size_t pages)
{
    size_t array = first >> FLAGS_SHIFT;
    while (array <= (first + pages - 1) >> FLAGS_SHIFT && array_make(array)) array++;
    return array > (first + pages - 1) >> FLAGS_SHIFT;
}

/* Called by the owner of the page's run only. */
static void flag_put(size_t page, flag value)
{
    flag *at = flag_of(page);
    if (at == NULL) return;
    if ((*at & FIRST) != 0) hz_atomic_add(&moved.runs, -1U);
    if ((value & FIRST) != 0) hz_atomic_add(&moved.runs, 1);
    *at = value;
}

static bool is_any_moved(size_t first, size_t pages)
{
    for (size_t page = first; page < first + pages; page++) {
        const flag *at = flag_of(page);
        if (at != NULL && (*at & MOVED) != 0) return true;
    }
    return false;
}

/* ---- giving pages back ---------------------------------------------------------------------- */

static bool renew(size_t first, size_t pages)
{
    const size_t bytes = pages << HZ_PAGE_SHIFT;
    if (!hz_os_renew(hz_page_address(first), bytes)) return false;
    for (size_t page = first; page < first + pages; page++) flag_put(page, 0);
    hz_arena_advise(hz_page_address(first), bytes);
    return true;
}

bool hz_run_purge(size_t first, size_t pages)
{
    if (is_any_moved(first, pages) && renew(first, pages)) return true;
    return hz_arena_purge(first, pages);
}

/* ---- moving --------------------------------------------------------------------------------- */

/* How many pages from the first are one mapping, at most `pages`; 0: not even one is. After a fork
 * the kernel does not join new pages with older ones. */
static size_t mapping_length(size_t first, size_t pages)
{
    size_t length = 0, too_long = pages + 1;
    for (size_t tried = pages; too_long - length > 1; tried = length + (too_long - length) / 2) {
        if (hz_os_is_one_mapping(hz_page_address(first), tried << HZ_PAGE_SHIFT))
            length = tried;
        else
            too_long = tried;
    }
    return length;
}

static bool part_move(size_t from, size_t to, size_t pages)
{
    const size_t bytes = pages << HZ_PAGE_SHIFT;
    if (pages == 0 || !hz_os_move(hz_page_address(from), hz_page_address(to), bytes)) return false;
    flag_put(to, MOVED | FIRST);
    for (size_t i = 1; i < pages; i++) flag_put(to + i, MOVED);
    return true;
}

/* Copies what the kernel does not move; the first range reads as zero afterwards, too. */
static void part_copy(size_t from, size_t to, size_t pages)
{
    const size_t bytes = pages << HZ_PAGE_SHIFT;
    memcpy(hz_page_address(to), hz_page_address(from), bytes);
    if (!hz_os_purge(hz_page_address(from), bytes)) memset(hz_page_address(from), 0, bytes);
}

bool hz_run_move(const hz_page_info *from, const hz_page_info *to)
{
    const size_t source = hz_info_page(from), target = hz_info_page(to), pages = from->pages;
    if (hz_atomic_peek(&moved.runs) >= RUNS_MOST || !flags_make(target, pages)) return false;
    for (size_t at = 0, length; at < pages; at += length) {
        length = mapping_length(source + at, pages - at);
        if (part_move(source + at, target + at, length)) continue;
        if (at == 0) return false;
        length += length == 0;
        part_copy(source + at, target + at, length);
    }
    (void)renew(source, pages);
    return true;
}
