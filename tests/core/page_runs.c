/*
 * The page pool: which free pages serve a large request when no resident run is long enough.
 */
#include "check.h"

#include <hz/hz.h>

#include "internal.h"

enum { PAGES = 64, MORE = 96, GUARD = 16, LONG = 4096 };

static hz_page_info *take_aligned(size_t pages, size_t align, bool *zeroed)
{
    hz_page_info *run = hz_pages_alloc(pages, align, 0, zeroed);
    require(run != NULL, "no run of %zu pages", pages);
    return run;
}

static hz_page_info *take(size_t pages)
{
    return take_aligned(pages, 1, NULL);
}

/* What is left of two neighbours must be as clean as it was. */
static void require_clean(size_t pages, const hz_page_info *wanted)
{
    bool zeroed;
    const hz_page_info *run = take_aligned(pages, 1, &zeroed);
    require(run == wanted, "it begins %td pages from there", run - wanted);
    require(zeroed, "it counts as written");
}

static void purge(hz_page_info *run)
{
    hz_pages_free(run);
    require(hz_purge_all(), "nothing was resident");
}

/* Two runs beside each other, the lower one first, and behind them one that is in use. */
static void take_neighbours(hz_page_info *two[2])
{
    two[0] = take(LONG);
    (void)take(GUARD);
    hz_pages_free(two[0]);
    two[0] = take(PAGES);
    two[1] = take(PAGES);
    require(two[1] == two[0] + PAGES, "no neighbours");
    (void)take(LONG - 2 * PAGES);
    (void)hz_purge_all();
}

/* Of two neighbours the lower one resident, the other one clean, and no other run is free. */
static void free_resident_and_clean(hz_page_info *two[2])
{
    take_neighbours(two);
    purge(two[1]);
    hz_pages_free(two[0]);
}

static bool is_apart(const hz_page_info *run, hz_page_info *const two[2])
{
    return run < two[0] || run >= two[0] + 2 * PAGES;
}

CHECK("a resident run is made longer by clean pages behind it")
{
    hz_page_info *two[2];
    free_resident_and_clean(two);
    require(take(MORE) == two[0], "it lies elsewhere");
    require_clean(2 * PAGES - MORE, two[0] + MORE);
}

CHECK("a resident run is made longer by clean pages before it")
{
    hz_page_info *two[2];
    take_neighbours(two);
    purge(two[0]);
    hz_pages_free(two[1]);
    require(take(MORE) == two[1] + PAGES - MORE, "it lies elsewhere");
    require_clean(2 * PAGES - MORE, two[0]);
}

CHECK("a resident run at the end of the arena is made longer")
{
    hz_page_info *last = take(LONG);
    hz_pages_free(last);
    require(take(LONG + PAGES) == last, "it lies elsewhere");
}

CHECK("what is too long even so is taken elsewhere")
{
    hz_page_info *two[2];
    free_resident_and_clean(two);
    require(is_apart(take(2 * PAGES + 1), two), "it lies over others");
}

CHECK("a resident run of less than half is left alone")
{
    hz_page_info *last = take(LONG);
    hz_pages_free(last);
    require(take(2 * LONG + 2) != last, "it was made longer");
}

CHECK("of several runs the lowest is taken")
{
    hz_page_info *long_one = take(MORE);
    (void)take(GUARD);
    hz_page_info *fitting = take(PAGES);
    (void)take(GUARD);
    hz_pages_free(long_one);
    hz_pages_free(fitting);
    require(long_one < fitting, "it is the higher one");
    require(take(PAGES) == long_one, "it lies elsewhere");
}

/* All of it would have to be cleared, because of the part that was written. */
CHECK("a request for zeros gets clean pages")
{
    bool zeroed;
    hz_page_info *two[2];
    free_resident_and_clean(two);
    require(is_apart(take_aligned(MORE, 1, &zeroed), two), "it is the one that was made longer");
    require(zeroed, "it is not zero");
}

/* What is cut off for the alignment would count as resident. */
CHECK("a request with an alignment gets a whole run")
{
    hz_page_info *two[2];
    free_resident_and_clean(two);
    require(is_apart(take_aligned(MORE, 2, NULL), two), "it is the one that was made longer");
}
