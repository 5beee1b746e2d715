/* clang-format off */
/*
 * The arena: the pages that all blocks come from, and the tables that describe them.
 *
 * It has a large range of addresses, its place, and maps only what it needs of it. So it can grow
 * to terabytes, while limits of the address space and of locked memory count only what is in use.
 *
 *         entries       infos         free bits               pages
 *     ... [####....... ][##......... ][###............... ]...  [##########.............. ] ...
 *         ^ each grows upwards; "#" is mapped                 ^ the place, a multiple of its size
 *
 * Page n has info n and its bits. The program or a library may map addresses of the place before
 * the arena does: then the arena leaves a gap and continues behind it. A claim never replaces a
 * mapping. Pages in a gap, and others that the arena skips, count as busy: no run of free pages
 * crosses them.
 *
 * The entry of a page is found by the low bits of the page's address. All entries that the mask
 * reaches can be read (as zero): a free of any address is safe to look up. When the arena outgrows
 * them, as many again are mapped behind them, and then the mask gets one more bit. As the place is
 * a multiple of its size, the entries of pages that are in use stay where they are.
 *
 * A fork may interrupt another thread anywhere in this file. The child's counters may be behind
 * what is mapped, but never ahead. Where it cannot claim addresses because of that, it leaves a
 * gap.
 */
/* clang-format on */
#include "internal.h"
#include "os.h"

/* The tables, in the order in which they lie. */
enum { ENTRIES, INFOS, FREE_BITS, TABLES };

enum {
    COMMIT_PAGES = 16,       /* pages that are claimed beyond those asked for, at least: 1 MiB */
    COMMIT_PAGES_MAX = 1024, /* at most */
    SKIP_PAGES = 1024, /* a gap ends at a multiple of it: its two sides share no part of a table */
    PLACES = 64,       /* places among all addresses, of 2 TiB each on x86 */
    PLACES_LEAST = 8,  /* fewer and larger ones, if there is much memory */
    TABLES_SHARE = 64, /* a place's tables lie in the last part of the place below it */
    UNCOMMIT_PAGES = 16,     /* a shorter run is not worth a mapping of its own */
    META_BYTES = 256 * 1024, /* unit of memory for hz's own structs */
};
#define ENTRIES_MIN ((size_t)1 << 16)     /* addresses that share an entry are FAR, see block.h */
#define ENTRIES_USUAL ((size_t)1 << 17)   /* 2 MiB */
#define ADDRESSES_FEW ((uint64_t)1 << 30) /* if fewer are left, as few entries as possible */
#define PLACE_BYTES_MIN ((uintptr_t)1 << 32)

/* Bytes of all tables for one page; see the initializer of `arena`. */
#define TABLE_BYTES                                                                                \
    (sizeof(hz_page_entry) + sizeof(hz_page_info) + (1 << HZ_PAGE_GRANULES_SHIFT) / 8)
_Static_assert(TABLE_BYTES <= HZ_PAGE_BYTES / TABLES_SHARE, "the tables fit the part of the place");
_Static_assert(ENTRIES_MIN << HZ_PAGE_SHIFT == (uint64_t)1 << 32, "FAR counts on that distance");

/* One of the tables: how much of it each page needs, and how much may be written. */
typedef struct table {
    unsigned char *start; /* its part for page 0 */
    size_t bytes_per_page;
    unsigned char *end; /* claimed up to here */
} table;

static struct {
    hz_lock lock; /* guards the rest */
    table tables[TABLES];
    size_t pages;        /* pages of the place */
    size_t first_number; /* number of page 0 in the place */
    size_t entries;      /* entries that can be read; a power of two */
    size_t usable_pages; /* pages are claimed up to here, except gaps */
    size_t used_pages;   /* pages are handed to the page pool up to here */
    bool is_doubling;    /* whether entries are being claimed */
    unsigned char *meta; /* rest of the current unit */
    size_t meta_left;
} arena = {.tables = {
               [ENTRIES] = {.bytes_per_page = sizeof(hz_page_entry)},
               [INFOS] = {.bytes_per_page = sizeof(hz_page_info)},
               [FREE_BITS] = {.bytes_per_page = (1 << HZ_PAGE_GRANULES_SHIFT) / 8},
           }};

/* Addresses and lengths for the system are multiples of HZ_PAGE_BYTES, hence of the kernel's pages,
 * which have 4, 16 or 64 KiB. */
static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- finding a place ------------------------------------------------------------------------ */

static void lay_out(uintptr_t place, uintptr_t place_bytes)
{
    unsigned char *at = (unsigned char *)(place - place_bytes / TABLES_SHARE);
    arena.pages = place_bytes >> HZ_PAGE_SHIFT;
    for (table *t = arena.tables; t < arena.tables + TABLES; t++) {
        t->start = t->end = at;
        at += arena.pages * t->bytes_per_page;
    }
    arena.pages -= arena.first_number;
}

/* Takes a place in which nothing is mapped; a sanitizer maps some terabytes. The last page of the
 * highest place is above all that a process may map, so the system is not asked about last pages.
 * Page 0 has a random number in the first half of the entries. The place's first page is not used,
 * as a free of NULL reads its entry. */
static bool settle(uintptr_t place, uintptr_t place_bytes, uint64_t random)
{
    const size_t bytes = arena.entries * sizeof(hz_page_entry);
    if (arena.entries > place_bytes >> HZ_PAGE_SHIFT) return false; /* they fill their table */
    /* the remainder of an address that shares an entry with a page must be above: FAR in block.h */
    if (HZ_REMAINDER_FAR(arena.entries << HZ_PAGE_SHIFT) < place + place_bytes) return false;
    if (!hz_os_is_unmapped((void *)place, place_bytes - HZ_PAGE_BYTES)) return false;
    arena.first_number = HZ_HUGE_PAGES * (1 + random % (arena.entries / HZ_HUGE_PAGES / 2));
    lay_out(place, place_bytes);
    table *entries = &arena.tables[ENTRIES];
    if (hz_os_claim(entries->start, bytes, false) != HZ_OS_CLAIMED) return false;
    hz_map.base = place + (arena.first_number << HZ_PAGE_SHIFT);
    hz_map.free_bits = (uint64_t *)(void *)arena.tables[FREE_BITS].start;
    hz_map.infos = (hz_page_info *)(void *)arena.tables[INFOS].start;
    hz_map.entries = (hz_page_entry *)(void *)entries->start;
    hz_atomic_put(&hz_map.entry_mask, bytes - sizeof(hz_page_entry));
    entries->start += arena.first_number * sizeof(hz_page_entry);
    return true;
}

/* Tries all places from a random one on, except those whose addresses may be below
 * HZ_REMAINDER_MAX. */
static bool settle_anywhere(uintptr_t place_bytes, size_t places, uint64_t random)
{
    const size_t low = HZ_REMAINDER_MAX / place_bytes + 1;
    if (places <= low + 1) return false;
    for (size_t i = 0; i < places - low; i++) {
        const size_t place = low + (random % PLACES + i) % (places - low);
        if (settle(place * place_bytes, place_bytes, random / PLACES)) return true;
    }
    return false;
}

/* Takes the addresses that the system chooses, if all of them are above HZ_REMAINDER_MAX. */
static bool settle_as_told(uint64_t random)
{
    for (uintptr_t bytes = PLACE_BYTES_MIN << 4; bytes >= PLACE_BYTES_MIN; bytes /= 2) {
        const uintptr_t found = hz_os_find_addresses(3 * bytes);
        const uintptr_t place = round_up(found + bytes / TABLES_SHARE, bytes);
        if (found != 0 && place >= HZ_REMAINDER_MAX && settle(place, bytes, random)) return true;
    }
    return false;
}

bool hz_arena_make(void)
{
    uint64_t random;
    size_t places = PLACES;
    const uintptr_t addresses = hz_os_addresses();
    while (places > PLACES_LEAST && addresses / places < 4 * hz_os_memory_bytes()) places /= 2;
    hz_os_random(&random, sizeof random);
    arena.entries = hz_os_address_space_left() < ADDRESSES_FEW ? ENTRIES_MIN : ENTRIES_USUAL;
    for (; arena.entries >= ENTRIES_MIN; arena.entries /= 2) {
        if (settle_anywhere(addresses / places, places, random)) return true;
        if (settle_as_told(random)) return true;
    }
    return false;
}

/* ---- growing -------------------------------------------------------------------------------- */

/* Maps as many entries again. If the addresses are taken, a thread of the parent may have mapped
 * them just before the fork: `is_doubling` tells. */
static hz_os_claimed entries_double(void)
{
    unsigned char *end = (unsigned char *)(hz_map.entries + arena.entries);
    const size_t bytes = arena.entries * sizeof(hz_page_entry);
    const bool was_doubling = arena.is_doubling;
    arena.is_doubling = true;
    hz_os_claimed claimed = hz_os_claim(end, bytes, false);
    if (claimed == HZ_OS_TAKEN) claimed = was_doubling ? HZ_OS_CLAIMED : HZ_OS_REFUSED;
    if (claimed == HZ_OS_CLAIMED) {
        arena.entries *= 2;
        hz_atomic_put(&hz_map.entry_mask, 2 * bytes - sizeof(hz_page_entry));
    }
    arena.is_doubling = false;
    return claimed;
}

/* The first page from `start` on that begins `pages` pages of which none has the first entry, under
 * any mask, past or future. A free of NULL reads the first entry, so no page in use may have it. */
static size_t pass_over(size_t start, size_t pages)
{
    size_t number = arena.first_number + start, first = ENTRIES_MIN;
    if (number == 0) number = 1;
    for (; first < number + pages; first *= 2) {
        if (first >= number) number = first + 1;
    }
    return number - arena.first_number;
}

void hz_arena_advise(void *address, size_t bytes)
{
    if (hz_cfg.thp == HZ_THP_ON) {
        if (hz_os_ask_huge_pages(address, bytes)) hz_count(HZ_STAT_huge_page_bytes, bytes);
    } else if (hz_cfg.thp != HZ_THP_OFF && hz_os_decline_huge_pages(address, bytes)) {
        hz_count(HZ_STAT_small_page_bytes, bytes);
    }
}

/* Declined again, it is one mapping with its neighbours, and khugepaged does not fill it again
 * after a purge. */
bool hz_arena_touch_huge(size_t first)
{
    void *address = hz_page_address(first);
    const size_t bytes = (size_t)HZ_HUGE_PAGES << HZ_PAGE_SHIFT;
    if (!hz_os_ask_huge_pages(address, bytes)) return false;
    hz_atomic_poke((_Atomic unsigned char *)address, 0);
    (void)hz_os_decline_huge_pages(address, bytes);
    hz_count(HZ_STAT_huge_page_bytes, bytes);
    return true;
}

/* A part of a table that is to become usable; it may be empty. */
typedef struct table_part {
    unsigned char *start;
    size_t bytes;
} table_part;

/* What the pages [from, to) still need of a table, with one page more on each side, which
 * neighbours read. Below it the table may have a hole. */
static table_part table_missing(const table *t, size_t from, size_t to)
{
    const uintptr_t first = (uintptr_t)(t->start + (from > 0 ? from - 1 : 0) * t->bytes_per_page);
    const uintptr_t last = (uintptr_t)(t->start + (to + 1) * t->bytes_per_page);
    uintptr_t start = first & -(uintptr_t)HZ_PAGE_BYTES;
    if (start < (uintptr_t)t->end) start = (uintptr_t)t->end;
    const size_t bytes = last > start ? round_up(last, HZ_PAGE_BYTES) - start : 0;
    return (table_part){(unsigned char *)start, bytes};
}

static hz_os_claimed table_claim(size_t i, const table_part *part)
{
    if (part->bytes == 0) return HZ_OS_CLAIMED;
    if (i != ENTRIES) return hz_os_claim(part->start, part->bytes, true);
    return hz_os_allow_writing(part->start, part->bytes) ? HZ_OS_CLAIMED : HZ_OS_REFUSED;
}

/* Makes the parts of all tables for the pages [from, to) usable, or none. */
static hz_os_claimed tables_extend(size_t from, size_t to)
{
    table_part parts[TABLES];
    hz_os_claimed claimed = HZ_OS_CLAIMED;
    while (arena.first_number + to >= arena.entries) {
        if (entries_double() != HZ_OS_CLAIMED) return HZ_OS_REFUSED;
    }
    size_t done = 0;
    for (; done < TABLES && claimed == HZ_OS_CLAIMED; done++) {
        parts[done] = table_missing(&arena.tables[done], from, to);
        claimed = table_claim(done, &parts[done]);
    }
    for (size_t i = 0; i < done && claimed == HZ_OS_CLAIMED; i++) {
        if (parts[i].bytes > 0) arena.tables[i].end = parts[i].start + parts[i].bytes;
    }
    /* Entries stay mapped, and the last part was not claimed. */
    for (size_t i = INFOS; i + 1 < done && claimed != HZ_OS_CLAIMED; i++)
        hz_os_unclaim(parts[i].start, parts[i].bytes);
    return claimed;
}

/* Makes the pages [from, to) usable, or none. */
static hz_os_claimed make_usable(size_t from, size_t to)
{
    void *address = hz_page_address(from);
    const size_t bytes = (to - from) << HZ_PAGE_SHIFT;
    hz_os_claimed claimed = hz_os_claim(address, bytes, true);
    if (claimed != HZ_OS_CLAIMED) return claimed;
    claimed = tables_extend(from, to);
    if (claimed != HZ_OS_CLAIMED) {
        hz_os_unclaim(address, bytes);
        return claimed;
    }
    hz_count(HZ_STAT_committed_bytes, bytes);
    hz_arena_advise(address, bytes);
    arena.usable_pages = to;
    return claimed;
}

/* Makes the pages [start, end) usable, and some more if the system allows and the entries do, so
 * that system calls stay rare. */
static hz_os_claimed make_room(size_t start, size_t end)
{
    const size_t from = start > arena.usable_pages ? start : arena.usable_pages;
    if (end <= arena.usable_pages) return HZ_OS_CLAIMED;
    /* A huge page comes only where all of it is usable when it is first touched. */
    const size_t step = hz_cfg.thp == HZ_THP_ON ? HZ_HUGE_PAGES : 1;
    const size_t share = hz_os_is_commit_strict() ? 0 : arena.usable_pages / 4;
    const size_t beyond = round_up(end + smaller(COMMIT_PAGES + share, COMMIT_PAGES_MAX), step);
    const size_t most = smaller(beyond, arena.entries - arena.first_number - 1);
    const hz_os_claimed claimed = most > end ? make_usable(from, most) : HZ_OS_REFUSED;
    return claimed == HZ_OS_CLAIMED ? claimed : make_usable(from, end);
}

/* Where another mapping is in the way, the arena goes on behind it, and one page between the two
 * stays unused. */
static bool extend(size_t pages, size_t *first)
{
    size_t from = arena.used_pages;
    for (size_t gap = SKIP_PAGES; pages <= arena.pages; gap *= 2) {
        const size_t start = pass_over(from, pages);
        if (start + pages > arena.pages) return false;
        const hz_os_claimed claimed = make_room(start, start + pages);
        if (claimed == HZ_OS_REFUSED) return false;
        if (claimed == HZ_OS_CLAIMED) {
            *first = start;
            arena.used_pages = start + pages;
            hz_atomic_put(&hz_map.granules, arena.used_pages << HZ_PAGE_GRANULES_SHIFT);
            return true;
        }
        from = start > arena.usable_pages ? start : arena.usable_pages;
        from = round_up(from + gap, SKIP_PAGES) + 1;
    }
    return false;
}

bool hz_arena_extend(size_t pages, size_t *first)
{
    hz_lock_take(&arena.lock);
    const bool done = extend(pages, first);
    hz_lock_release(&arena.lock);
    return done;
}

/* ---- giving back ---------------------------------------------------------------------------- */

/* Where writable pages count as used, a long run is made unwritable, too. */
bool hz_arena_purge(size_t first, size_t pages)
{
    void *address = hz_page_address(first);
    const size_t bytes = pages << HZ_PAGE_SHIFT;
    if (hz_os_is_commit_strict() && pages >= UNCOMMIT_PAGES && hz_os_uncommit(address, bytes))
        return true;
    return hz_os_purge(address, bytes);
}

bool hz_arena_reuse(size_t first, size_t pages)
{
    void *address = hz_page_address(first);
    const size_t bytes = pages << HZ_PAGE_SHIFT;
    if (!hz_os_is_commit_strict()) return true;
    if (!hz_os_allow_writing(address, bytes)) return false;
    hz_arena_advise(address, bytes);
    return true;
}

/* ---- memory for hz's own structs ------------------------------------------------------------ */

static bool meta_refill(size_t bytes)
{
    size_t unit = META_BYTES;
    unsigned char *fresh = hz_os_map(unit);
    if (fresh == NULL) {
        unit = round_up(bytes, HZ_PAGE_BYTES);
        fresh = hz_os_map(unit);
    }
    if (fresh == NULL) return false;
    arena.meta = fresh;
    hz_plain_put(&arena.meta_left, unit);
    return true;
}

/* A long array gets a mapping of its own, so that the rest of the unit still serves smaller
 * structs. */
void *hz_meta_alloc(size_t bytes)
{
    void *result = NULL;
    if (bytes > META_BYTES / 4) return hz_os_map(round_up(bytes, HZ_PAGE_BYTES));
    bytes = round_up(bytes, HZ_CACHE_LINE_BYTES);
    hz_lock_take(&arena.lock);
    if (bytes <= arena.meta_left || meta_refill(bytes)) {
        result = arena.meta;
        hz_plain_put(&arena.meta_left, arena.meta_left - bytes);
        hz_plain_put(&arena.meta, arena.meta + bytes);
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

/* The order of the writes keeps the state valid at each instant: pages below usable_pages are
 * usable, and meta_left is never too large. */
void hz_arena_after_fork(void)
{
    (void)hz_lock_inherit(&arena.lock);
}
