/* clang-format off */
/*
 * The arena: one reserved range of addresses, and the tables that describe it.
 *
 *     [entries of pages][free bits][spans][ pages ... ]
 *
 * Everything is reserved at once and made usable bit by bit from the front, so that a look-up is
 * plain indexing and nothing is accounted that is not used. Where addresses are scarce (ulimit -v)
 * the arena is smaller.
 *
 * The entry of a page is found by the low bits of the page's address, so that a free need not know
 * where the arena begins: the arena's first page has one in the midst of them, and after the last
 * one they go on with the first. All can be read from the start (as zero): a free of any address is
 * safe to look up.
 */
/* clang-format on */
#include "internal.h"
#include "os.h"

/* The tables behind the entries, in the order in which they lie. */
enum { FREE_BITS, SPANS, TABLES };

enum {
    HUGE_PAGE_BYTES = 2 << 20,
    COMMIT_PAGES = 64,       /* least number of pages made usable at once: 4 MiB */
    META_BYTES = 256 * 1024, /* unit of memory for hz's own structs */
};
#define ARENA_BYTES_MIN ((uint64_t)1 << 20)
#define ARENA_BYTES_USUAL ((uint64_t)1 << 36)
#define ARENA_BYTES_MAX ((uint64_t)1 << 40)

#define ENTRIES_MIN ((size_t)1 << 16) /* who shares an entry is far away, see hz_distance */

/* One of the tables: how much of it each page needs, and how much is usable. */
typedef struct table {
    unsigned char *start;
    size_t bytes_per_page;
    size_t usable_bytes;
} table;

static struct {
    hz_lock lock; /* guards the rest */
    table tables[TABLES];
    size_t pages;        /* pages reserved */
    size_t first_entry;  /* the page whose entry is the first */
    size_t usable_pages; /* pages made usable */
    size_t used_pages;   /* pages handed to the page heap */
    unsigned char *meta; /* rest of the current unit */
    size_t meta_left;
} arena;

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

static size_t one_table_bytes(const table *t, size_t pages)
{
    return round_up(pages * t->bytes_per_page, HZ_SYSTEM_PAGE_BYTES);
}

static size_t entry_bytes(size_t pages)
{
    size_t count = ENTRIES_MIN;
    while (count <= pages) count *= 2;
    return count * sizeof(hz_page);
}

static size_t table_bytes(size_t pages)
{
    size_t bytes = entry_bytes(pages);
    for (size_t i = 0; i < TABLES; i++) bytes += one_table_bytes(&arena.tables[i], pages);
    return round_up(bytes, HUGE_PAGE_BYTES);
}

static bool lay_out(unsigned char *start, size_t pages)
{
    unsigned char *at = start + entry_bytes(pages);
    if (!hz_os_allow_reading(start, entry_bytes(pages))) return false;
    for (size_t i = 0; i < TABLES; i++) {
        arena.tables[i].start = at;
        at += one_table_bytes(&arena.tables[i], pages);
    }
    arena.pages = pages;
    hz_map.pages = (hz_page *)(void *)start;
    hz_map.page_mask = entry_bytes(pages) - sizeof(hz_page);
    hz_map.base = (uintptr_t)start + table_bytes(pages);
    const size_t last_entry = hz_map.page_mask >> HZ_PAGE_ENTRY_SHIFT;
    arena.first_entry = -(hz_map.base >> HZ_PAGE_SHIFT) & last_entry;
    hz_map.granules = pages << HZ_PAGE_GRANULES_SHIFT;
    hz_map.free_bits = (uint64_t *)(void *)arena.tables[FREE_BITS].start;
    hz_map.spans = (hz_span *)(void *)arena.tables[SPANS].start;
    return true;
}

static bool reserve(uint64_t arena_bytes)
{
    size_t pages = arena_bytes >> HZ_PAGE_SHIFT;
    size_t bytes = table_bytes(pages) + (pages << HZ_PAGE_SHIFT) + HUGE_PAGE_BYTES;
    unsigned char *start = hz_os_reserve(bytes, HZ_DISTANCE_MAX);
    if (start == NULL) return false;
    unsigned char *aligned = (unsigned char *)round_up((uintptr_t)start, HUGE_PAGE_BYTES);
    if (lay_out(aligned, pages)) return true;
    hz_os_unreserve(start, bytes);
    return false;
}

/* Room for four times the memory of the machine, so that holes between blocks never matter; less
 * under a limit. */
static uint64_t wanted_bytes(void)
{
    uint64_t left = hz_os_address_space_left();
    uint64_t wanted = ARENA_BYTES_USUAL;
    if (left != UINT64_MAX) return left / 8 * 5;
    while (wanted < 4 * hz_os_memory_bytes() && wanted < ARENA_BYTES_MAX) wanted *= 2;
    return wanted;
}

bool hz_arena_make(void)
{
    static const size_t bytes_per_page[TABLES] = {
        [FREE_BITS] = (1 << HZ_PAGE_GRANULES_SHIFT) / 8,
        [SPANS] = sizeof(hz_span),
    };
    for (size_t i = 0; i < TABLES; i++) arena.tables[i].bytes_per_page = bytes_per_page[i];
    for (uint64_t bytes = wanted_bytes(); bytes >= ARENA_BYTES_MIN; bytes /= 2) {
        if (reserve(bytes)) return true;
    }
    return false;
}

static bool table_extend(table *t, size_t pages)
{
    size_t wanted = one_table_bytes(t, pages);
    if (wanted <= t->usable_bytes) return true;
    if (!hz_os_allow_writing(t->start + t->usable_bytes, wanted - t->usable_bytes)) return false;
    t->usable_bytes = wanted;
    return true;
}

/* In two parts where they go on with the first. */
static bool entries_extend(size_t from, size_t to)
{
    while (from < to) {
        const uintptr_t first = (uintptr_t)hz_page_at(hz_page_address(from));
        const uintptr_t end = (uintptr_t)hz_map.pages + hz_map.page_mask + sizeof(hz_page);
        size_t bytes = (to - from) * sizeof(hz_page);
        if (bytes > end - first) bytes = end - first;
        const uintptr_t start = first & -(uintptr_t)HZ_SYSTEM_PAGE_BYTES;
        const size_t whole = round_up(first + bytes - start, HZ_SYSTEM_PAGE_BYTES);
        if (!hz_os_allow_writing((void *)start, whole)) return false;
        from += bytes / sizeof(hz_page);
    }
    return true;
}

static void pages_advise(size_t first, size_t count)
{
    size_t bytes = count << HZ_PAGE_SHIFT;
    hz_count(HZ_STAT_committed_bytes, bytes);
    if (hz_cfg.thp == HZ_THP_ON && hz_os_ask_huge_pages(hz_page_address(first), bytes)) {
        hz_count(HZ_STAT_huge_page_bytes, bytes);
    }
}

static bool make_usable(size_t pages)
{
    if (!entries_extend(arena.usable_pages, pages)) return false;
    for (size_t i = 0; i < TABLES; i++) {
        if (!table_extend(&arena.tables[i], pages)) return false;
    }
    size_t count = pages - arena.usable_pages;
    void *address = hz_page_address(arena.usable_pages);
    if (!hz_os_allow_writing(address, count << HZ_PAGE_SHIFT)) return false;
    pages_advise(arena.usable_pages, count);
    arena.usable_pages = pages;
    return true;
}

/* More than is needed now, so that system calls stay rare; exactly what is needed when that much is
 * refused. */
static bool make_room(size_t pages)
{
    size_t generous = pages + COMMIT_PAGES + arena.usable_pages / 8;
    if (pages <= arena.usable_pages) return true;
    if (pages > arena.pages) return false;
    return make_usable(generous < arena.pages ? generous : arena.pages) || make_usable(pages);
}

/* The page whose entry is the first, and the one below it, whose entry is the last, belong to
 * nobody: a free of NULL looks at them, and one that must not go the fast way. */
static size_t pass_over(size_t start, size_t pages)
{
    const bool is_there = start <= arena.first_entry && arena.first_entry <= start + pages;
    return is_there ? arena.first_entry + 1 : start;
}

bool hz_arena_extend(size_t pages, size_t *first)
{
    hz_lock_take(&arena.lock);
    const size_t start = pass_over(arena.used_pages, pages);
    bool done = pages <= arena.pages && make_room(start + pages);
    if (done) {
        *first = start;
        arena.used_pages = start + pages;
    }
    hz_lock_release(&arena.lock);
    return done;
}

static bool meta_refill(size_t bytes)
{
    size_t unit = bytes > META_BYTES / 4 ? round_up(bytes, HZ_SYSTEM_PAGE_BYTES) : META_BYTES;
    unsigned char *fresh = hz_os_map(unit);
    if (fresh == NULL) {
        unit = round_up(bytes, HZ_SYSTEM_PAGE_BYTES);
        fresh = hz_os_map(unit);
    }
    if (fresh == NULL) return false;
    arena.meta = fresh;
    arena.meta_left = unit;
    return true;
}

void *hz_meta_alloc(size_t bytes)
{
    void *result = NULL;
    bytes = round_up(bytes, HZ_CACHE_LINE_BYTES);
    hz_lock_take(&arena.lock);
    if (bytes <= arena.meta_left || meta_refill(bytes)) {
        result = arena.meta;
        arena.meta += bytes;
        arena.meta_left -= bytes;
    }
    hz_lock_release(&arena.lock);
    return result;
}

size_t hz_arena_used_pages(void)
{
    hz_lock_take(&arena.lock);
    const size_t pages = arena.used_pages;
    hz_lock_release(&arena.lock);
    return pages;
}

void hz_arena_fork_lock(void)
{
    hz_lock_take(&arena.lock);
}

void hz_arena_fork_unlock(void)
{
    hz_lock_release(&arena.lock);
}
