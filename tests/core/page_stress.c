/*
 * The page pool against a model: random calls, and the model says which page belongs to which run.
 *
 * Each page of a run in use holds the run's number in its first word. Now and then every page below
 * the heap's top is looked at: it has exactly one state, the model agrees with it, and the lists
 * and sums of the page pool do, too. Between calls the program forks; the child goes on for a while
 * with its copy of the model. Some forks happen while another thread purges, or is changing the
 * heap. With TEST_PAGES in the environment the system has so little memory that requests fail.
 */
#include "check.h"
#include "fake_os.h"

#include <hz/hz.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pages.h"

enum {
    RUNS = 96,           /* that the model has at most */
    TABLE_PAGES = 32768, /* more than the heap ever gets */
    RUN_PAGES = 160,     /* of the longest request */
    STEPS_TO_CHECK = 32,
    STEPS_TO_FORK = 500,
    CHILD_STEPS = 200,
    CHILD_SECONDS = 20,
};

/* A run that the page pool has handed out. */
typedef struct taken {
    hz_page_info *run;   /* NULL: there is none */
    size_t pages;        /* its length */
    bool is_being_swept; /* from hz_pages_sweep; else from hz_pages_alloc */
} taken;

static taken runs[RUNS];
static uint8_t owner[TABLE_PAGES]; /* of each page: a number into `runs`, plus 1; 0: it is free */
static uint64_t random_state;

static size_t below(size_t limit)
{
    return (size_t)(random_next(&random_state) >> 16) % limit;
}

static size_t page_of(const hz_page_info *run)
{
    return (size_t)(run - hz_map.infos);
}

static uint64_t *words_of(size_t page)
{
    return hz_page_address(page);
}

/* ---- a system with little memory ------------------------------------------------------------- */

static size_t most_pages; /* the arena gets no more than these; 0: all that it asks for */

long os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    const bool is_more = number == SYS_mmap && (words[2] & PROT_WRITE) != 0 &&
                         (words[3] & MAP_FIXED) == 0 && hz_page_pool.top >= most_pages;
    return most_pages != 0 && is_more ? -ENOMEM : os_call_behind(number, words);
}

/* ---- the model ------------------------------------------------------------------------------ */

static void stamp(size_t number, size_t first, size_t end)
{
    for (size_t page = first; page < end; page++) {
        require(page < TABLE_PAGES, "page %zu is beyond the model", page);
        require(owner[page] == 0, "page %zu has two owners", page);
        owner[page] = (uint8_t)(number + 1);
        if (!runs[number].is_being_swept) *words_of(page) = number + 1;
    }
}

static void unstamp(size_t number, size_t first, size_t end)
{
    for (size_t page = first; page < end; page++) {
        require(owner[page] == number + 1, "page %zu of another run", page);
        require(runs[number].is_being_swept || *words_of(page) == number + 1,
                "page %zu was written to", page);
        owner[page] = 0;
    }
}

static void remember(size_t number, hz_page_info *run, bool is_being_swept)
{
    runs[number] = (taken){run, run->pages, is_being_swept};
    stamp(number, page_of(run), page_of(run) + run->pages);
}

static void forget(size_t number)
{
    const size_t first = page_of(runs[number].run);
    unstamp(number, first, first + runs[number].pages);
    runs[number].run = NULL;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void take(size_t number)
{
    const size_t most = below(2) != 0 ? 12 : RUN_PAGES, pages = 1 + below(most);
    const size_t align = below(4) != 0 ? 1 : (size_t)1 << below(6);
    bool zeroed = false;
    const uint32_t node = (uint32_t)below(hz_map.nodes);
    const bool is_any_node_right =
        most_pages != 0 || hz_pages_dirty() > hz_max_dirty_bytes() >> HZ_PAGE_SHIFT;
    hz_page_info *run = hz_pages_alloc(pages, align, node, below(2) != 0 ? &zeroed : NULL);
    if (run == NULL && most_pages != 0) return;
    require(run != NULL && run->pages == pages, "no run of %zu pages", pages);
    require(run->node == node || is_any_node_right, "a run of node %u for node %u", run->node,
            node);
    require((uintptr_t)hz_page_address(page_of(run)) % (align << HZ_PAGE_SHIFT) == 0,
            "not aligned");
    for (size_t i = 0; zeroed && i < pages; i++)
        require(*words_of(page_of(run) + i) == 0, "page %zu of it is not zero", i);
    remember(number, run, false);
}

static void give(size_t number)
{
    hz_page_info *run = runs[number].run;
    forget(number);
    if (below(4) == 0 && hz_run_purge(page_of(run), run->pages))
        hz_pages_free_clean(run);
    else
        hz_pages_free(run);
}

static void resize(size_t number)
{
    taken *it = &runs[number];
    const size_t pages = 1 + below(RUN_PAGES), first = page_of(it->run), old = it->pages;
    if (pages < old) unstamp(number, first + pages, first + old);
    const bool done = hz_pages_resize(it->run, pages) ||
                      (most_pages != 0 && hz_pages_grow_at_last(it->run, pages));
    require(done || pages > old, "it does not shrink");
    if (!done) return;
    require(it->run->pages == pages, "it has %u pages, not %zu", it->run->pages, pages);
    if (pages > old) stamp(number, first + old, first + pages);
    it->pages = pages;
}

static void sweep(size_t number)
{
    hz_sweep from = {.below = below(2) != 0 ? SIZE_MAX : 1 + below(TABLE_PAGES), .looks = SIZE_MAX};
    hz_page_info *run = hz_pages_sweep(&from, 1 + below(RUN_PAGES));
    if (run != NULL) remember(number, run, true);
}

static void end_sweep(size_t number)
{
    hz_page_info *run = runs[number].run;
    const size_t pages = run->pages, choices[] = {0, pages, below(pages + 1)};
    const size_t part = choices[below(COUNT(choices))];
    forget(number);
    const bool done = part > 0 && hz_run_purge(page_of(run), part);
    hz_pages_swept(run, done ? part : 0);
}

static void step(void)
{
    const size_t number = below(RUNS);
    if (below(400) == 0)
        (void)hz_purge_all();
    else if (runs[number].run == NULL)
        below(8) == 0 ? sweep(number) : take(number);
    else if (runs[number].is_being_swept)
        end_sweep(number);
    else
        below(3) == 0 ? resize(number) : give(number);
}

/* ---- what must agree ------------------------------------------------------------------------ */

/* Of free runs: clean ones, and dirty ones of each node. */
enum { CLEAN, DIRTY, KINDS = DIRTY + HZ_NODES_MAX };

typedef struct sums {
    size_t runs[KINDS];  /* free runs, by kind */
    size_t pages[KINDS]; /* their pages */
    size_t taken;        /* pages of runs that were handed out */
    size_t busy;         /* pages that belong to nothing */
} sums;

static size_t kind_of(const hz_page_info *run)
{
    return run->state == HZ_RUN_DIRTY ? (size_t)DIRTY + run->node : CLEAN;
}

static size_t count_taken(size_t page, sums *found)
{
    const taken *it = &runs[owner[page] - 1];
    const hz_page_info *run = &hz_map.infos[page];
    require(it->run == run && run->pages == it->pages, "at page %zu no run begins", page);
    require(run->state == (it->is_being_swept ? HZ_RUN_PURGED : HZ_RUN_OUT), "page %zu: state %d",
            page, run->state);
    for (size_t i = 0; i < it->pages; i++)
        require(owner[page + i] == owner[page], "page %zu is another run's", page + i);
    found->taken += it->pages;
    return it->pages;
}

static size_t count_free(size_t page, sums *found)
{
    const hz_page_info *run = &hz_map.infos[page], *last = run + run->pages - 1;
    require(run->pages > 0 && page + run->pages <= hz_page_pool.top, "page %zu: length", page);
    const size_t kind = kind_of(run);
    require(run->head == page && last->head == page && last->state == run->state &&
                kind_of(last) == kind,
            "the run at page %zu does not know its end", page);
    require(page == 0 || run[-1].state != run->state || kind_of(run - 1) != kind ||
                owner[page - 1] != 0,
            "the runs that meet at page %zu are not joined", page);
    for (size_t i = 0; i < run->pages; i++) {
        require(owner[page + i] == 0, "page %zu is in use and free", page + i);
        require((hz_freed_ms(page + i) != 0) == (kind != CLEAN), "page %zu: time", page + i);
    }
    found->runs[kind]++;
    found->pages[kind] += run->pages;
    return run->pages;
}

static sums count_pages(void)
{
    sums found = {0};
    for (size_t page = 0; page < hz_page_pool.top;) {
        const uint8_t state = hz_map.infos[page].state;
        if (owner[page] != 0) {
            page += count_taken(page, &found);
        } else if (state == HZ_RUN_CLEAN || state == HZ_RUN_DIRTY) {
            page += count_free(page, &found);
        } else {
            require(state == HZ_RUN_NONE, "page %zu is in state %d", page, state);
            found.busy++;
            page++;
        }
    }
    return found;
}

static void require_listed(const hz_run_lists *lists, size_t kind, const sums *found)
{
    size_t count = 0, pages = 0;
    for (size_t list = 0; list < HZ_RUN_LISTS; list++) {
        const hz_page_info *previous = NULL;
        for (const hz_page_info *run = lists->first[list]; run != NULL; run = run->next) {
            require(run->previous == previous && kind_of(run) == kind, "list %zu", list);
            require(owner[page_of(run)] == 0, "page %zu is listed", page_of(run));
            previous = run;
            count++;
            pages += run->pages;
        }
        require((lists->filled >> list & 1) == (previous != NULL), "filled, list %zu", list);
    }
    require(count == found->runs[kind] && pages == found->pages[kind],
            "%zu runs of %zu pages are listed, there are %zu of %zu", count, pages,
            found->runs[kind], found->pages[kind]);
}

static size_t gap_pages(void)
{
    size_t pages = 0;
    for (const hz_page_info *gap = hz_page_pool.gaps; gap != NULL; gap = gap->next)
        pages += gap->pages;
    return pages;
}

static void require_agreement(void)
{
    const sums found = count_pages();
    size_t dirty = 0;
    require_listed(&hz_page_pool.clean, CLEAN, &found);
    for (size_t node = 0; node < HZ_NODES_MAX; node++) {
        require_listed(&hz_page_pool.dirty[node], DIRTY + node, &found);
        dirty += found.pages[DIRTY + node];
    }
    require(dirty == hz_pages_dirty(), "%zu pages are dirty, the count is %zu", dirty,
            hz_pages_dirty());
    require(found.busy == gap_pages(), "%zu pages are lost", found.busy - gap_pages());
    require(hz_page_pool.lock.word == 0, "the lock is held");
}

/* ---- forks ---------------------------------------------------------------------------------- */

static const uintptr_t other_thread = 1 << 20; /* as in a lock's word; not this one */

/* Gives some of the runs that are being swept to the other thread, or takes those back. */
static void lend_sweeps(bool is_lent)
{
    for (size_t number = 0; number < RUNS; number++) {
        const bool is_swept = runs[number].run != NULL && runs[number].is_being_swept;
        if (is_swept && number % 2 == 0)
            runs[number].run->purger = is_lent ? other_thread : hz_lock_me();
    }
}

/* In the child: runs that the other thread was purging are free. */
static void forget_lent_sweeps(void)
{
    for (size_t number = 0; number < RUNS; number += 2)
        if (runs[number].run != NULL && runs[number].is_being_swept) forget(number);
}

static hz_page_pool_t pool_before;
static hz_page_info infos_before[TABLE_PAGES];

/* What is noted of gaps never changes, and of their pages nothing is. */
static void restore_gaps(void)
{
    for (hz_page_info *gap = hz_page_pool.gaps; gap != NULL; gap = gap->next) {
        *gap = infos_before[page_of(gap)];
        for (size_t page = page_of(gap) + 1 - gap->pages; page < page_of(gap); page++)
            hz_map.infos[page] = infos_before[page];
    }
}

/* As if the other thread were changing the heap: all that may be half changed is spoilt. */
static void spoil(void)
{
    pool_before = hz_page_pool;
    memcpy(infos_before, hz_map.infos, hz_page_pool.top * sizeof(hz_page_info));
    for (size_t page = 0; page < hz_page_pool.top; page++) {
        hz_page_info *run = &hz_map.infos[page];
        if (owner[page] != 0) continue;
        run->next = run->previous = (hz_page_info *)8;
        run->head = run->pages = 7;
        run->state = below(2) != 0 ? HZ_RUN_CLEAN : HZ_RUN_DIRTY;
        run->node = (uint8_t)below(HZ_NODES_MAX);
    }
    restore_gaps();
    memset(&hz_page_pool.clean, 0x55, sizeof hz_page_pool.clean);
    memset(hz_page_pool.dirty, 0x55, hz_map.nodes * sizeof hz_page_pool.dirty[0]);
    hz_page_pool.purging = (hz_page_info *)8;
    hz_page_pool.dirty_pages = 123456;
    hz_page_pool.lock.word = other_thread;
}

static void run_child(bool is_within)
{
    (void)alarm(CHILD_SECONDS);
    forget_lent_sweeps();
    if (is_within) (void)hz_purge_all();
    for (size_t i = 0; i < CHILD_STEPS; i++) {
        if (i % STEPS_TO_CHECK == 0) require_agreement();
        step();
    }
    require_agreement();
    _exit(0);
}

/* Also within the page pool: no system call is made under its lock, but a handler of a signal may
 * fork. */
static void fork_between(bool is_spoilt, bool is_within)
{
    lend_sweeps(true);
    if (is_spoilt) spoil();
    if (is_within) hz_lock_take(&hz_page_pool.lock);
    const pid_t child = fork();
    if (is_within) hz_lock_release(&hz_page_pool.lock);
    if (child == 0) run_child(is_within);
    if (is_spoilt) {
        memcpy(hz_map.infos, infos_before, pool_before.top * sizeof(hz_page_info));
        hz_page_pool = pool_before;
    }
    lend_sweeps(false);
    require_child_ends(child);
}

CHECK_IN(120, "every page of the page pool has one state and one owner, also after forks")
{
    const size_t steps = number_chosen("TEST_STEPS", 20000);
    random_state = seed_chosen(20261123);
    require(hz_start(), "hz did not start");
    hz_map.nodes = (uint32_t)number_chosen("TEST_NODES", 1);
    most_pages = number_chosen("TEST_PAGES", 0);
    for (size_t i = 0; i < steps; i++) {
        step();
        if (i % STEPS_TO_CHECK == 0) require_agreement();
        if (i % STEPS_TO_FORK != 0) continue;
        fork_between(i / STEPS_TO_FORK % 3 == 0, i / STEPS_TO_FORK % 3 == 1);
    }
    for (size_t number = 0; number < RUNS; number++) {
        if (runs[number].run == NULL) continue;
        runs[number].is_being_swept ? end_sweep(number) : give(number);
    }
    require_agreement();
    require(count_pages().taken == 0, "runs are still in use");
}
