/*
 * The arena maps no more addresses than it needs: it grows by pages, leaves gaps where others have
 * mapped something, and gets more page entries, while those in use stay where they are.
 */
#include "check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <hz/hz.h>

#include "internal.h"

/* Two pages share an entry only if the mask does not tell them apart. */
CHECK("the entries of pages stay where they are when there are more")
{
    enum { STEP = 4096 };
    size_t first, next;
    require(hz_start() && hz_arena_extend(STEP, &first), "hz did not start");
    const hz_page_entry *entry = hz_entry_at(hz_page_address(first));
    const uintptr_t mask = hz_map.entry_mask;
    while (hz_map.entry_mask < 16 * mask)
        require(hz_arena_extend(STEP, &next), "the arena ends early");
    require(hz_entry_at(hz_page_address(first)) == entry, "the entry of page %zu moved", first);
    require(hz_entry_at(hz_page_address(next)) != entry, "page %zu has the same", next);
}

/* Maps a page where the arena or one of its tables would grow next. */
static void take(const void *address)
{
    void *got = mmap((void *)(uintptr_t)address, HZ_PAGE_BYTES, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    require(got == address, "there is something at %p already", address);
}

/* The address behind the mapping that `address` lies in. */
static const unsigned char *end_of_mapping(const void *address)
{
    char line[512];
    uintptr_t start, end, found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    require(maps != NULL, "no /proc/self/maps");
    while (found == 0 && fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) != 2) continue;
        if ((uintptr_t)address >= start && (uintptr_t)address < end) found = end;
    }
    (void)fclose(maps);
    require(found != 0, "%p is not mapped", address);
    return (const unsigned char *)found;
}

static void require_usable(size_t first, size_t pages)
{
    memset(hz_page_address(first), 1, pages << HZ_PAGE_SHIFT);
    for (size_t page = first - 1; page < first + pages; page++) {
        hz_map.infos[page].head = 0;
        hz_map.free_bits[page << (HZ_PAGE_GRANULES_SHIFT - 6)] = 0;
    }
}

/* Extends the arena over what others have mapped: behind it, with a page between that is in no run.
 */
static size_t require_gap(size_t last, const void *end)
{
    size_t first;
    take(end);
    for (size_t i = 0; i < 200; i++) {
        require(hz_arena_extend(64, &first), "the arena does not go on behind %p", end);
        require_usable(first, 64);
        if (first > last + 64) return first;
        last = first;
    }
    check_failed(__FILE__, __LINE__, "%p is not in the way", end);
}

CHECK("the arena goes on behind what others have mapped")
{
    size_t page;
    require(hz_start() && hz_arena_extend(1, &page), "hz did not start");
    page = require_gap(page, end_of_mapping(hz_page_address(page)));
    page = require_gap(page, end_of_mapping(&hz_map.infos[page]));
    page =
        require_gap(page, end_of_mapping(&hz_map.free_bits[page << (HZ_PAGE_GRANULES_SHIFT - 6)]));
    hz_free(filled_block(hz_malloc(100 << 20), 100 << 20));
}

/* Lets the process map `bytes` more. */
static void leave(size_t bytes)
{
    const size_t most = mapped_bytes() + bytes;
    require(setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) == 0, "setrlimit failed");
}

/* As a sanitizer has them, or a program that reserves terabytes before it allocates: before hz
 * starts. Where the tables of the next place would lie is left alone. */
__attribute__((constructor(101))) static void take_all_places(void)
{
    enum { PLACES = 64 };
    const uintptr_t place = (uintptr_t)1 << 41, tables = place / 32;
    const char *taken = getenv("TEST_PLACES_TAKEN");
    if (taken == NULL) return;
    for (uintptr_t at = place; at < PLACES * place; at += place)
        (void)mmap((void *)at, place - tables, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (strcmp(taken, "but_small") == 0) leave((size_t)14 << 30);
}

/* The smallest place has 4 GiB. */
static void all_places_are_taken(void)
{
    require(hz_start(), "hz did not start");
    require(hz_malloc(1900 << 20) != NULL, "too little memory where every place is taken");
}

int main(int argc, char **argv)
{
    if (getenv("TEST_PLACES_TAKEN") != NULL)
        return run_check_here("the arena settles where others have left room", all_places_are_taken,
                              30);
    return run_checks(argc, argv);
}
