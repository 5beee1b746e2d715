/*
 * Whether a block starts at a granule is arithmetic on its page's entry: each granule of the
 * longest span that a parameter allows is tried, for every class.
 */
#include "check.h"

#include "internal.h"

enum {
    GRANULES = (2 << 20) / HZ_GRANULE_BYTES,
    BEFORE = HZ_SYSTEM_PAGE_BYTES / HZ_GRANULE_BYTES, /* the most that a colour leaves free */
};

/* A span whose first block starts at granule `first`, and of which so many blocks were cut. */
static void require_starts(uint32_t class_, uint32_t first, uint32_t cut)
{
    const uint32_t granules = hz_class_bytes[class_] / HZ_GRANULE_BYTES;
    hz_page page = hz_page_for(first, class_, 0);
    hz_atomic_poke(&page.cut, hz_distance(&page, first + cut * granules));
    for (uint32_t before = 1; before <= BEFORE; before++) {
        require(!hz_is_start(&page, first - before), "class %u, %u cut: %u before the first",
                class_, cut, before);
    }
    for (uint32_t i = 0; i < GRANULES; i++) {
        const bool is_start = i % granules == 0 && i / granules < cut;
        require(hz_is_start(&page, first + i) == is_start, "class %u, %u cut: granule %u", class_,
                cut, i);
    }
}

static void all_cuts(void)
{
    const uint32_t past_2_to_32 = UINT32_MAX - 4096; /* a page keeps the low half of a number */
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        const uint32_t blocks = GRANULES * HZ_GRANULE_BYTES / hz_class_bytes[class_];
        require_starts(class_, 4096, 0);
        require_starts(class_, 4096 + BEFORE, 1);
        require_starts(class_, 4096 + BEFORE, blocks / 2);
        require_starts(class_, past_2_to_32, blocks);
    }
}

static void large_block(void)
{
    hz_page page = hz_page_for(4096, HZ_CLASS_LARGE, 0);
    hz_atomic_poke(&page.cut, 1);
    for (uint32_t i = 0; i < GRANULES; i++)
        require(hz_is_start(&page, 4096 + i) == (i == 0), "granule %u", i);
}

static void no_page(void)
{
    const hz_page page = {0};
    for (uint32_t granule = 0; granule < GRANULES; granule++)
        require(!hz_is_start(&page, granule), "granule %u", granule);
}

static const check checks[] = {
    {"a block starts where one was cut, and nowhere else", all_cuts, 120},
    {"a large block starts at its first granule only", large_block, 0},
    {"no block starts in a page that is not in use", no_page, 0},
};

int main(int argc, char **argv)
{
    return run_checks(checks, COUNT(checks), argc, argv);
}
