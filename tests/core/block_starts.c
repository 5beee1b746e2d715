/*
 * Whether a block starts at an address is arithmetic on its page's entry: each granule of the
 * longest span that a parameter allows is tried, for every class, and some of what shares an entry
 * though it lies far away.
 */
#include "check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

enum { SPAN_BYTES = 2 << 20 };

#define ADDRESS_MAX ((uint64_t)1 << 48) /* no address, and so no block in a magazine, is higher */

/* Where the arena may end at the most, and how far apart, or a multiple, are pages there that share
 * an entry. */
static const struct extent {
    uint64_t end;
    uint64_t sharing_bytes;
} extents[] = {
    {(uint64_t)1 << 47, (uint64_t)1 << 32},
    {ADDRESS_MAX, (uint64_t)1 << 33}, /* only where a process has more than 2^47 addresses */
};

/* An address; it is never read. */
static const void *at(uint64_t address)
{
    return (const void *)(uintptr_t)address;
}

/* The entry of a page when the last block of it that was cut starts at `last`. */
static hz_page_entry entry_in(uint32_t class_, uint32_t shard, uint64_t last)
{
    hz_page_entry page;
    hz_entry_set(&page, hz_class_step(class_, shard), at(last));
    return page;
}

static hz_page_entry entry_of(uint32_t class_, uint64_t last)
{
    return entry_in(class_, 0, last);
}

static uint64_t remainder(hz_page_entry *page, uint64_t address)
{
    return hz_remainder(page, hz_atomic_peek(&page->step), at(address));
}

static bool has_fast_free(hz_page_entry *page)
{
    return hz_step_stack(hz_atomic_peek(&page->step)) != 0;
}

/* A fast path knows no more than the remainder: it must tell both from any address. */
static void require_told(hz_page_entry *page, uint64_t address, bool is_start)
{
    require(hz_is_start(page, at(address)) == is_start, "at %" PRIx64, address);
    if (has_fast_free(page) && !is_start)
        require(remainder(page, address) >= ADDRESS_MAX, "near %" PRIx64, address);
}

/* A span whose first block starts at `first`, and of which so many blocks were cut, at least one.
 */
static void require_starts(uint32_t class_, uint64_t first, uint32_t cut)
{
    const uint64_t bytes = hz_class_bytes[class_];
    hz_page_entry page = entry_of(class_, first + (cut - 1) * bytes);
    for (uint64_t before = HZ_GRANULE_BYTES; before < bytes; before += HZ_GRANULE_BYTES)
        require_told(&page, first - before, false);
    for (uint64_t offset = 0; offset < SPAN_BYTES; offset += HZ_GRANULE_BYTES)
        require_told(&page, first + offset, offset % bytes == 0 && offset / bytes < cut);
}

CHECK_IN(120, "a block starts where one was cut, and nowhere else")
{
    const uint64_t low = (uint64_t)5 << 30, high = ADDRESS_MAX - 2 * SPAN_BYTES;
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        const uint32_t blocks = SPAN_BYTES / hz_class_bytes[class_];
        require_starts(class_, low, 1);
        require_starts(class_, low + HZ_GRANULE_BYTES, blocks / 2);
        require_starts(class_, high, blocks);
    }
}

/* A step has the shard in its lowest bits: the first block of the longest span is as far from the
 * last as it may be, and what is far away is not near. */
static void require_starts_in(uint32_t class_, uint32_t shard, const struct extent *extent)
{
    const uint64_t bytes = hz_class_bytes[class_], last = extent->end / 2;
    const uint64_t first = last - (SPAN_BYTES / bytes - 1) * bytes;
    hz_page_entry page = entry_in(class_, shard, last);
    for (uint64_t address = first; address <= last; address += bytes) {
        require_told(&page, address, true);
        require_told(&page, address + HZ_GRANULE_BYTES,
                     bytes == HZ_GRANULE_BYTES && address < last);
    }
    for (uint64_t times = 1; times <= 64; times++) {
        const uint64_t far = last - times * extent->sharing_bytes;
        require(!has_fast_free(&page) || remainder(&page, far) >= extent->end, "near %" PRIx64,
                far);
    }
    if (has_fast_free(&page))
        require(hz_step_stack(page.step) == HZ_ROW_OFFSET(shard) + HZ_STACK_OFFSET(class_),
                "class %u, shard %u", class_, shard);
}

CHECK_IN(120, "so it is in every shard")
{
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++)
        for (uint32_t shard = 0; shard < HZ_SHARDS_MAX; shard++)
            for (size_t i = 0; i < COUNT(extents); i++)
                require_starts_in(class_, shard, &extents[i]);
}

CHECK("no block starts at an odd address")
{
    const uint64_t first = (uint64_t)77 << 40;
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        hz_page_entry page = entry_of(class_, first + 3 * (uint64_t)hz_class_bytes[class_]);
        for (uint64_t offset = 1; offset < HZ_PAGE_BYTES; offset += 2)
            require_told(&page, first + offset, false);
    }
}

/* Of addresses that are far from where a block starts: one in 2^most_shift may be mistaken. */
static void require_far_told(const struct extent *extent, bool only_powers, unsigned most_shift)
{
    uint64_t tried = 0, mistaken = 0;
    const uint64_t last = extent->end / (only_powers ? 2 : 3) / HZ_PAGE_BYTES * HZ_PAGE_BYTES;
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        hz_page_entry page = entry_of(class_, last);
        if (only_powers && (hz_class_bytes[class_] & (hz_class_bytes[class_] - 1)) != 0) continue;
        for (uint64_t far = extent->sharing_bytes; far < last; far += extent->sharing_bytes) {
            tried += 2;
            mistaken += remainder(&page, last - far) < extent->end;
            mistaken += remainder(&page, last + far) < extent->end;
        }
    }
    require(mistaken <= tried >> most_shift, "%" PRIu64 " of %" PRIu64, mistaken, tried);
}

CHECK("nearly nothing that is far away passes for a block, and nothing for one of 2^n bytes")
{
    require_far_told(&extents[0], false, 16);
    require_far_told(&extents[1], false, 15);
    for (size_t i = 0; i < COUNT(extents); i++) require_far_told(&extents[i], true, 63);
}

/* The arena takes no place that ends higher than its entries can tell. */
CHECK("the arena lies where all that is far away is told from a block")
{
    require(hz_start(), "hz did not start");
    const uint64_t sharing = (hz_map.entry_mask / sizeof(hz_page_entry) + 1) << HZ_PAGE_SHIFT;
    for (size_t i = 0; i < COUNT(extents); i++)
        if (sharing == extents[i].sharing_bytes)
            require(hz_map.base < extents[i].end, "it starts at %zx", (size_t)hz_map.base);
}

/* ---- the worked example of block.h ---------------------------------------------------------- */

CHECK("a large block starts at its first byte only")
{
    const uint64_t start = (uint64_t)5 << 30;
    hz_page_entry page = entry_of(HZ_CLASS_LARGE, start);
    for (uint64_t offset = 0; offset < HZ_PAGE_BYTES; offset++)
        require_told(&page, start + offset, offset == 0);
}

CHECK("no block starts in a page that is not in use")
{
    const hz_page_entry page = {0};
    for (uint64_t address = 0; address < SPAN_BYTES; address += HZ_GRANULE_BYTES)
        require(!hz_is_start(&page, at(address)), "at %" PRIx64, address);
}

/* Whether a page's entry is the first of all, at which a free of NULL looks, or was the first
 * before there were more entries. */
static bool is_first_entry(size_t page)
{
    const uintptr_t at = (uintptr_t)hz_entry_at(hz_page_address(page)) - (uintptr_t)hz_map.entries;
    const size_t entry = at >> HZ_PAGE_ENTRY_SHIFT;
    return entry == 0 || (entry > UINT16_MAX && (entry & (entry - 1)) == 0);
}

/* Of all pages, over more than 1 TiB. */
CHECK_IN(
    60, "no page that is used has the first entry, which is that of NULL, at any size of the table")
{
    enum { STEP = 4096 };
    size_t first, pages = 0;
    require(hz_start(), "hz did not start");
    const uintptr_t mask = hz_map.entry_mask;
    while (hz_arena_extend(STEP, &first)) {
        for (size_t page = first; page < first + STEP; page++)
            require(!is_first_entry(page), "page %zu", page);
        pages += STEP;
    }
    require(pages > (size_t)1 << (40 - HZ_PAGE_SHIFT), "only %zu", pages);
    require(hz_map.entry_mask > mask, "there are as many entries as before");
}
