/*
 * Purging: free pages that are still resident go back to the system, in parts.
 *
 * A page is due when it has been free for decay_ms. A sweep from the highest page downwards finds
 * it; allocations take the lowest pages first. The next sweep begins when the oldest page that this
 * one left alone will be due. While more than max_dirty_bytes are free, pages are due at once, the
 * most recently freed ones last.
 *
 * The system refuses locked memory. Where it refuses a part, a call goes on with others; where it
 * refuses all of them, no one asks it again for a while: a pause that doubles with each such call.
 *
 * One thread purges at a time. The only lock that is held during its system calls is one that
 * malloc and free try and never wait for (but see run_list_unknown in repair.c, for a child of
 * fork). What one call returns is bounded, and so is how many pages it looks at.
 */
#include "internal.h"
#include "os.h"

enum {
    PART_PAGES = HZ_PURGE_BYTES >> HZ_PAGE_SHIFT,
    LEAST_PART_PAGES = 2, /* takes a tenth of the time of PART_PAGES */
    LOOKS_MOST = 1 << 15, /* at pages, in one call: takes about as long as returning PART_PAGES */
    PAGES_OF_MS = 2, /* a sweep does so many in a millisecond at least, in calls of up to 1 MiB */
    /* decay_ms / SHARE_OF_DECAY is the least time between two sweeps. Of the pages beyond
     * max_dirty_bytes, those that were freed within that time go last. */
    SHARE_OF_DECAY = 8,
    PAUSE_MOST_MS = 1024,
    REFUSALS_MOST = 16, /* parts that the system refuses, after which a call asks for no more */
};

_Static_assert(HZ_PARAM_MOST(decay_ms) < UINT32_MAX / 2,
               "an age tells past times from future ones");

/* A long run is returned in at most 1,024 parts. Of a run above 1 GiB most was rarely touched, so
 * parts of 1 MiB would cost more system calls than the returned memory is worth. */
size_t hz_purge_part_pages(size_t run_pages)
{
    enum { PARTS_MOST = 1024 };
    return run_pages / PARTS_MOST > PART_PAGES ? run_pages / PARTS_MOST : PART_PAGES;
}

static struct {
    hz_lock lock;                /* guards the rest; held while the system works */
    _Atomic bool is_behind;      /* whether more was due after the last part */
    _Atomic uint32_t next_ms;    /* when the next sweep for aged pages begins */
    bool is_sweeping;            /* whether `aged` is under way */
    hz_sweep aged;               /* the sweep for pages that were free for decay_ms */
    uint64_t part_ticks;         /* when it took its last part */
    size_t excess_below;         /* how far the sweep for pages beyond max_dirty_bytes has come */
    size_t any_below;            /* how far the search for the highest of them has come */
    bool is_any_taken;           /* whether the system has taken a part in this call, */
    uint32_t refusals;           /* and how many it has refused */
    _Atomic uint32_t refused_ms; /* when it last refused all parts of a call */
    _Atomic uint32_t pause_ms;   /* how long it is not asked then; 0: it took some */
} purge;

static void pause_longer(void)
{
    const uint32_t pause_ms = 2 * hz_atomic_peek(&purge.pause_ms);
    hz_atomic_poke(&purge.refused_ms, hz_os_now_ms());
    hz_atomic_poke(&purge.pause_ms, pause_ms == 0              ? 1
                                    : pause_ms < PAUSE_MOST_MS ? pause_ms
                                                               : PAUSE_MOST_MS);
}

static void call_begin(void)
{
    purge.is_any_taken = false;
    purge.refusals = 0;
}

static void call_end(void)
{
    if (purge.is_any_taken)
        hz_atomic_poke(&purge.pause_ms, 0);
    else if (purge.refusals > 0)
        pause_longer();
}

static bool may_ask_for_more(void)
{
    return purge.refusals < REFUSALS_MOST;
}

/* Returns a run to the system in parts, up to the first one that it refuses; the result is how many
 * pages went. */
static size_t run_return(const hz_page_info *run)
{
    const size_t first = hz_info_page(run), pages = run->pages;
    const size_t most = hz_purge_part_pages(pages);
    size_t done = 0;
    for (size_t part; done < pages; done += part) {
        part = pages - done < most ? pages - done : most;
        if (!hz_run_purge(first + done, part)) break;
    }
    return done;
}

/* Returns to the system a run that no other thread can reach, and lists it as free. */
static bool run_make_clean(hz_page_info *run)
{
    const size_t pages = run->pages, done = run_return(run);
    hz_pages_swept(run, done);
    if (done < pages) {
        purge.refusals++;
        return false;
    }
    purge.is_any_taken = true;
    hz_count(HZ_STAT_purges, 1);
    hz_count(HZ_STAT_purged_bytes, pages << HZ_PAGE_SHIFT);
    return true;
}

/* ---- age ------------------------------------------------------------------------------------ */

static uint32_t decay_ms(void)
{
    return (uint32_t)hz_live(decay_ms);
}

/* next_ms is at most decay_ms ahead. Once it has passed, the unsigned difference is far above that,
 * also where the clock of 32 bits has wrapped around. */
static bool is_time(void)
{
    const uint32_t wait_ms = hz_atomic_peek(&purge.next_ms) - hz_os_now_ms();
    return wait_ms == 0 || wait_ms > decay_ms();
}

/* Begins a sweep, or brings the clock of the one under way up to date. */
static void sweep_begin(void)
{
    const uint32_t now_ms = hz_os_now_ms();
    if (!purge.is_sweeping) {
        purge.aged = (hz_sweep){.below = SIZE_MAX, .now_ms = now_ms};
        purge.part_ticks = hz_os_ticks();
    }
    purge.aged.oldest_ms += now_ms - purge.aged.now_ms;
    purge.aged.now_ms = now_ms;
    purge.aged.least_ms = decay_ms();
    purge.is_sweeping = true;
}

static void sweep_end(void)
{
    const uint32_t most_ms = decay_ms(); /* once: it may change meanwhile */
    const uint32_t soonest_ms = most_ms / SHARE_OF_DECAY;
    const uint32_t oldest_ms = purge.aged.oldest_ms;
    uint32_t wait_ms = oldest_ms < most_ms ? most_ms - oldest_ms : 0;
    if (wait_ms < soonest_ms) wait_ms = soonest_ms;
    hz_atomic_poke(&purge.next_ms, purge.aged.now_ms + wait_ms);
    purge.is_sweeping = false;
}

/* How many pages to purge, by the time since the last part: frequent calls share the work, rare
 * ones do more each. Where writable pages count as used it is PART_PAGES, as only a long run
 * becomes unwritable. */
static size_t aged_part_pages(void)
{
    const uint64_t now_ticks = hz_os_ticks();
    const uint64_t pages = (now_ticks - purge.part_ticks) * PAGES_OF_MS / hz_os_ticks_of_ms();
    purge.part_ticks = now_ticks;
    if (pages > PART_PAGES || hz_os_is_commit_strict()) return PART_PAGES;
    return pages > LEAST_PART_PAGES ? (size_t)pages : LEAST_PART_PAGES;
}

/* Goes on with the sweep, by one part. */
static void purge_aged(void)
{
    sweep_begin();
    purge.aged.looks = LOOKS_MOST;
    for (size_t left = aged_part_pages(); left > 0 && may_ask_for_more();) {
        hz_page_info *run = hz_pages_sweep(&purge.aged, left);
        if (run == NULL) break;
        const size_t pages = run->pages;
        if (run_make_clean(run)) left -= pages;
    }
    if (purge.aged.below == 0) sweep_end();
}

/* ---- size ----------------------------------------------------------------------------------- */

static size_t excess(void)
{
    const size_t keep = hz_max_dirty_bytes() >> HZ_PAGE_SHIFT;
    const size_t dirty = hz_pages_dirty();
    return dirty > keep ? dirty - keep : 0;
}

/* Where a sweep goes on that has come so far: at the top after its end. */
static size_t below_or_top(size_t below)
{
    return below > 0 ? below : SIZE_MAX;
}

/* The next run to return, downwards from the last one: pages that were freed just now are passed
 * over. If there is no other, the highest run. NULL when `looks` ran out: then the next call goes
 * on. */
static hz_page_info *find_excess(size_t most, size_t *looks)
{
    hz_sweep sweep = {.below = below_or_top(purge.excess_below),
                      .now_ms = hz_os_now_ms(),
                      .least_ms = decay_ms() / SHARE_OF_DECAY,
                      .looks = *looks};
    hz_page_info *run = hz_pages_sweep(&sweep, most);
    purge.excess_below = sweep.below;
    if (run == NULL) {
        sweep.below = below_or_top(purge.any_below);
        sweep.least_ms = 0;
        while (run == NULL && sweep.below > 0 && sweep.looks > 0)
            run = hz_pages_sweep(&sweep, most);
        purge.any_below = run == NULL ? sweep.below : 0;
    }
    *looks = sweep.looks;
    return run;
}

static void purge_excess(void)
{
    size_t looks = LOOKS_MOST;
    for (size_t left = PART_PAGES, much; left > 0 && may_ask_for_more() && (much = excess()) > 0;) {
        hz_page_info *run = find_excess(much < left ? much : left, &looks);
        if (run == NULL) return;
        const size_t first = hz_info_page(run), pages = run->pages;
        hz_count(HZ_STAT_purges_forced, 1);
        if (run_make_clean(run))
            left -= pages;
        else
            purge.any_below = first; /* the highest run below it is next */
    }
}

/* ---- both ----------------------------------------------------------------------------------- */

bool hz_purge_is_behind(void)
{
    return hz_atomic_peek(&purge.is_behind);
}

bool hz_purge_part(void)
{
    const uint32_t pause_ms = hz_atomic_peek(&purge.pause_ms);
    if (hz_pages_dirty() == 0) return false;
    if (pause_ms > 0 && hz_os_now_ms() - hz_atomic_peek(&purge.refused_ms) < pause_ms) return false;
    const bool is_too_much = excess() > 0;
    if (!is_too_much && !hz_purge_is_behind() && !is_time()) return false;
    if (hz_atomic_peek(&purge.lock.word) != 0 || !hz_lock_try(&purge.lock)) return false;
    call_begin();
    if (is_too_much)
        purge_excess();
    else
        purge_aged();
    call_end();
    hz_atomic_poke(&purge.is_behind, purge.is_sweeping || excess() > 0);
    hz_lock_release(&purge.lock);
    return hz_atomic_peek(&purge.pause_ms) == 0;
}

/* Takes whole runs, and returns each in parts, so that the runs are not split. Once the system has
 * refused a part, it takes each part by itself, and leaves off after REFUSALS_MOST in a row. */
bool hz_purge_all(void)
{
    size_t most = SIZE_MAX;
    hz_sweep sweep = {.below = SIZE_MAX, .looks = SIZE_MAX};
    hz_lock_take(&purge.lock);
    call_begin();
    while (sweep.below > 0 && may_ask_for_more()) {
        hz_page_info *run = hz_pages_sweep(&sweep, most);
        if (run == NULL) continue;
        const size_t end = hz_info_page(run) + run->pages;
        if (run_make_clean(run)) {
            purge.refusals = 0;
        } else if (most > PART_PAGES) {
            most = PART_PAGES;
            sweep.below = end;
        }
    }
    call_end();
    const bool any = purge.is_any_taken;
    hz_lock_release(&purge.lock);
    return any;
}

/* A sweep that another thread was in goes on where it was, or begins anew. */
void hz_purge_after_fork(void)
{
    (void)hz_lock_inherit(&purge.lock);
}
