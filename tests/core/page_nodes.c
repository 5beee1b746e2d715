/*
 * The page pool of a machine with two nodes: when the memory of one serves a thread of the other,
 * and what else is free where the system has no more memory. The functions of this program take the
 * place of the C library's.
 */
#include "before_syscall.h"
#include "check.h"

#include <hz/hz.h>

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

enum { PAGES = 64, MORE = 96, LONG = 4096, OURS = 0, THEIRS = 1 };

/* ---- a system without memory ----------------------------------------------------------------- */

static bool is_refusing; /* no page becomes usable any more */
static size_t granted;   /* up to so many bytes nevertheless */

static long syscall_here(long number, const long words[SYSCALL_WORDS])
{
    return syscall_behind(number, words);
}

static size_t purges; /* system calls that gave memory back */

int madvise(void *address, size_t bytes, int advice)
{
    purges++;
    return (int)syscall(SYS_madvise, address, bytes, advice);
}

void *mmap(void *address, size_t bytes, int access, int flags, int fd, off_t offset)
{
    if (!is_refusing || access == PROT_NONE || bytes <= granted)
        return (void *)syscall(SYS_mmap, address, bytes, access, flags, fd, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

int mprotect(void *address, size_t bytes, int access)
{
    if (!is_refusing || (access & PROT_WRITE) == 0 || bytes <= granted)
        return (int)syscall(SYS_mprotect, address, bytes, access);
    errno = ENOMEM;
    return -1;
}

/* ---- the page pool --------------------------------------------------------------------------- */

static hz_page_info *try_to_take(size_t pages, uint32_t node, bool *zeroed)
{
    return hz_pages_alloc(pages, 1, node, zeroed);
}

static hz_page_info *take(size_t pages, uint32_t node)
{
    hz_page_info *run = try_to_take(pages, node, NULL);
    require(run != NULL && run->pages == pages, "no run of %zu pages", pages);
    memset(hz_info_address(run), 1, pages << HZ_PAGE_SHIFT);
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

enum { SHORT = 8, SHORT_RUNS = 32 };

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
    enum { ALL = SHORT * SHORT_RUNS };
    hz_page_info *runs[SHORT_RUNS];
    take_neighbours(runs, SHORT_RUNS, SHORT);
    for (size_t i = 0; i < SHORT_RUNS; i++) hz_pages_free(runs[i]);
    purges = 0;
    require(hz_purge_all() && hz_pages_dirty() == 0, "some stay resident");
    require(purges <= ALL * HZ_PAGE_BYTES / HZ_PURGE_BYTES + 1, "%zu purges", purges);
    const size_t left = touchable(runs[0], ALL);
    require(!hz_arena_is_strict() || left == 0, "%zu bytes stay writable", left);
}

/* From now on what is free must serve. */
static void use_up(void)
{
    is_refusing = true;
    while (try_to_take(1, OURS, NULL) != NULL) continue;
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

CHECK("what another node freed serves")
{
    hz_page_info *runs[2];
    take_neighbours(runs, 2, PAGES);
    use_up();
    hz_pages_free(runs[1]);
    require(take(PAGES, OURS) == runs[1], "it lies elsewhere");
}

/* Of the other node only clean pages are free, which the system does not make writable. */
CHECK("so it does where clean pages are refused")
{
    bool zeroed;
    hz_page_info *runs[4];
    take_neighbours(runs, 4, PAGES);
    if (!hz_arena_is_strict()) return;
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
    require((run != NULL) == !hz_arena_is_strict(), "clean pages: %d", run != NULL);
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

CHECK("a block grows into what another node freed")
{
    hz_page_info *runs[2];
    take_neighbours(runs, 2, PAGES);
    use_up();
    hz_pages_free(runs[1]);
    require(!hz_pages_resize(runs[0], MORE), "it grows where it need not");
    require(hz_pages_grow_at_last(runs[0], MORE) && runs[0]->pages == MORE, "it does not grow");
    require(take(2 * PAGES - MORE, THEIRS) == runs[0] + MORE, "the rest lies elsewhere");
}
