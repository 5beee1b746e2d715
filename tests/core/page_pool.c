/*
 * The page pool: which free pages serve a large request when no resident run is long enough, when
 * the memory of one node serves a thread of another, and what else is free where the system has no
 * more memory.
 */
#include "check.h"
#include "fake_os.h"

#include <hz/hz.h>

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"
#include "os.h"

enum { PAGES = 64, MORE = 96, GUARD = 16, LONG = 4096, OURS = 0, THEIRS = 1 };

/* ---- a system without memory ----------------------------------------------------------------- */

static bool is_refusing; /* no page becomes usable any more */
static size_t granted;   /* up to so many bytes nevertheless */
static size_t purges;    /* system calls that gave memory back */

long os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    const bool is_claim = (number == SYS_mmap && words[2] != PROT_NONE) ||
                          (number == SYS_mprotect && (words[2] & PROT_WRITE) != 0);
    purges += number == SYS_madvise;
    if (is_refusing && is_claim && (size_t)words[1] > granted) return -ENOMEM;
    return os_call_behind(number, words);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static hz_page_info *try_to_take(size_t pages, uint32_t node, bool *zeroed)
{
    return hz_pages_alloc(pages, 1, node, zeroed);
}

static hz_page_info *take(size_t pages, uint32_t node)
{
    hz_page_info *run = try_to_take(pages, node, NULL);
    require(run != NULL && run->pages == pages, "no run of %zu pages", pages);
    for (size_t i = 0; i < pages; i++) *(char *)hz_info_address(run + i) = 1;
    return run;
}

static void start(void)
{
    require(hz_start(), "hz did not start");
    hz_map.nodes = 2;
}

/* Runs beside each other, the lowest first, of alternate nodes; and behind them one in use. */
static void take_neighbours(hz_page_info **runs, size_t count, size_t pages)
{
    start();
    hz_page_info *all = take(count * pages, OURS);
    hz_pages_free(all);
    (void)hz_purge_all();
    for (size_t i = 0; i < count; i++) {
        runs[i] = take(pages, i % 2);
        require(i == 0 || runs[i] == runs[i - 1] + pages, "no neighbours");
    }
    (void)take(1, OURS);
}

/* Two runs of our node beside each other, the lower one first, and behind them one in use; no other
 * run is free. */
static void take_two(hz_page_info *two[2])
{
    require(hz_start(), "hz did not start");
    two[0] = take(LONG, OURS);
    (void)take(GUARD, OURS);
    hz_pages_free(two[0]);
    two[0] = take(PAGES, OURS);
    two[1] = take(PAGES, OURS);
    require(two[1] == two[0] + PAGES, "no neighbours");
    (void)take(LONG - 2 * PAGES, OURS);
    (void)hz_purge_all();
}

/* Of the two one is clean, and the other one resident. */
static void free_two(hz_page_info *clean, hz_page_info *resident)
{
    hz_pages_free(clean);
    require(hz_purge_all(), "nothing was resident");
    hz_pages_free(resident);
}

static bool is_apart(const hz_page_info *run, hz_page_info *const two[2])
{
    return run < two[0] || run >= two[0] + 2 * PAGES;
}

/* What is left of two neighbours must be as clean as it was. */
static void require_clean(size_t pages, const hz_page_info *wanted)
{
    bool zeroed;
    require(try_to_take(pages, OURS, &zeroed) == wanted, "it lies elsewhere");
    require(zeroed, "it counts as written");
}

/* ---- one node -------------------------------------------------------------------------------- */

CHECK("a resident run is made longer by clean pages behind it")
{
    hz_page_info *two[2];
    take_two(two);
    free_two(two[1], two[0]);
    require(take(MORE, OURS) == two[0], "it lies elsewhere");
    require_clean(2 * PAGES - MORE, two[0] + MORE);
}

CHECK("a resident run is made longer by clean pages before it")
{
    hz_page_info *two[2];
    take_two(two);
    free_two(two[0], two[1]);
    require(take(MORE, OURS) == two[1] + PAGES - MORE, "it lies elsewhere");
    require_clean(2 * PAGES - MORE, two[0]);
}

CHECK("a resident run at the end of the arena is made longer, but not one of less than half")
{
    hz_page_info *last = take(LONG, OURS);
    hz_pages_free(last);
    require(try_to_take(2 * LONG + 2, OURS, NULL) != last, "it was made longer");
    last = take(2 * LONG, OURS);
    hz_pages_free(last);
    require(take(2 * LONG + PAGES, OURS) == last, "it lies elsewhere");
}

CHECK("of several runs the lowest is taken")
{
    hz_page_info *long_one = take(MORE, OURS);
    (void)take(GUARD, OURS);
    hz_page_info *fitting = take(PAGES, OURS);
    (void)take(GUARD, OURS);
    hz_pages_free(long_one);
    hz_pages_free(fitting);
    require(long_one < fitting, "it is the higher one");
    require(take(PAGES, OURS) == long_one, "it lies elsewhere");
}

/* All of it would have to be cleared, because of the part that was written; and what is cut off for
 * the alignment would count as resident. */
CHECK("a request that is too long, for zeroes, or aligned, gets a whole run")
{
    bool zeroed;
    hz_page_info *two[2];
    take_two(two);
    free_two(two[1], two[0]);
    require(is_apart(take(2 * PAGES + 1, OURS), two), "it lies over others");
    require(is_apart(try_to_take(MORE, OURS, &zeroed), two) && zeroed, "zeroes were written");
    require(is_apart(hz_pages_alloc(MORE, 2, OURS, NULL), two), "it was made longer");
}

/* ---- two nodes ------------------------------------------------------------------------------- */

/* Bytes that may be touched. */
static size_t touchable(const hz_page_info *run, size_t pages)
{
    size_t bytes = 0;
    int ends[2];
    require(pipe(ends) == 0, "pipe");
    for (size_t i = 0; i < pages; i++)
        if (write(ends[1], hz_info_address(run + i), 1) == 1) bytes += HZ_PAGE_BYTES;
    return bytes;
}

CHECK("pages of two nodes go back together")
{
    enum { SHORT = 8, RUNS = 32, ALL = SHORT * RUNS };
    hz_page_info *runs[RUNS];
    take_neighbours(runs, RUNS, SHORT);
    for (size_t i = 0; i < RUNS; i++) hz_pages_free(runs[i]);
    purges = 0;
    require(hz_purge_all() && hz_pages_dirty() == 0, "some stay resident");
    require(purges <= ALL * HZ_PAGE_BYTES / HZ_PURGE_BYTES + 1, "%zu purges", purges);
    const size_t left = touchable(runs[0], ALL);
    require(!hz_os_is_commit_strict() || left == 0, "%zu bytes stay writable", left);
}

/* 1 MiB may stay resident. */
CHECK("memory of another node serves while more than max_dirty_bytes are resident")
{
    start();
    hz_page_info *theirs = take(LONG, THEIRS);
    (void)take(1, THEIRS);
    hz_pages_free(theirs);
    hz_page_info *ours = take(PAGES, OURS);
    require(ours < theirs || ours >= theirs + LONG, "memory of another node serves");
    require(hz_set("max_dirty_bytes", "1048576", NULL, 0) == 0, "max_dirty_bytes");
    ours = take(PAGES, OURS);
    require(ours >= theirs && ours < theirs + LONG, "more became resident");
    require(ours->node == THEIRS, "it does not go back there");
}

/* From now on what is free must serve. */
static void use_up(void)
{
    is_refusing = true;
    while (try_to_take(1, OURS, NULL) != NULL) continue;
}

CHECK("what another node freed serves, and a block grows into it")
{
    hz_page_info *runs[2];
    take_neighbours(runs, 2, PAGES);
    use_up();
    hz_pages_free(runs[1]);
    require(!hz_pages_resize(runs[0], MORE), "it grows where it need not");
    require(hz_pages_grow_at_last(runs[0], MORE) && runs[0]->pages == MORE, "it does not grow");
    require(take(2 * PAGES - MORE, OURS) == runs[0] + MORE, "the rest lies elsewhere");
}

/* Of the other node only clean pages are free, which the system does not make writable. */
CHECK("so it does where clean pages are refused")
{
    bool zeroed;
    hz_page_info *runs[4];
    take_neighbours(runs, 4, PAGES);
    if (!hz_os_is_commit_strict()) return;
    hz_pages_free(runs[2]);
    (void)hz_purge_all();
    use_up();
    hz_pages_free(runs[1]);
    require(try_to_take(PAGES, OURS, &zeroed) == runs[1] && !zeroed, "it lies elsewhere");
    require(try_to_take(PAGES, OURS, NULL) == NULL, "what the system refused was handed out");
}

CHECK("neighbours of two nodes serve one request")
{
    hz_page_info *runs[3];
    take_neighbours(runs, 3, PAGES);
    use_up();
    for (size_t i = 0; i < COUNT(runs); i++) hz_pages_free(runs[i]);
    require(take(COUNT(runs) * PAGES, OURS) == runs[0], "it lies elsewhere");
}

CHECK("a run of another node is made longer")
{
    hz_page_info *runs[2];
    take_neighbours(runs, 2, PAGES);
    use_up();
    require(hz_run_purge(hz_info_page(runs[0]), PAGES), "purge");
    hz_pages_free_clean(runs[0]);
    hz_pages_free(runs[1]);
    hz_page_info *run = try_to_take(MORE, OURS, NULL);
    require((run != NULL) == !hz_os_is_commit_strict(), "clean pages: %d", run != NULL);
    require(run == NULL || (run >= runs[0] && run < runs[1]), "it lies elsewhere");
}

CHECK("so are those at the end of the arena")
{
    start();
    use_up();
    granted = (size_t)LONG << HZ_PAGE_SHIFT;
    hz_page_info *last = take(LONG, THEIRS);
    granted = (size_t)PAGES << HZ_PAGE_SHIFT;
    hz_pages_free(last);
    require(try_to_take(LONG + 2 * PAGES, OURS, NULL) == NULL, "more than there is");
    require(take(LONG + PAGES / 2, OURS) == last, "it lies elsewhere");
}
