/*
 * The page pool in the child of a fork.
 *
 * The child has the memory as it was at one instant. If another thread held the page pool's lock
 * then, the lists of free runs may be half changed, and they are made anew. What is valid at each
 * instant, and so can be relied on:
 *
 *     top, gaps       which pages came from the arena
 *     state, pages    of each run in use, and of each run that the forking thread was purging
 *
 * All other pages are free. A run that another thread was purging is free, too: its purge is ended.
 * No record tells which of these pages are resident, so all of them count as dirty. They belong to
 * the node of the child's thread: it gets its own copy of a page when it writes to it.
 */
#include "os.h"
#include "pages.h"

/* ---- runs in use ---------------------------------------------------------------------------- */

/* Calls `act` for each part of the arena between two gaps. A gap at or above the end of a part
 * was being noted by a thread that the fork has lost. */
static void each_part(void (*act)(size_t first, size_t end))
{
    size_t end = hz_page_pool.top;
    for (const hz_page_info *gap = hz_page_pool.gaps; gap != NULL; gap = gap->next) {
        if (hz_info_page(gap) >= end) continue;
        act(hz_info_page(gap) + 1, end);
        end = hz_info_page(gap) + 1 - gap->pages;
    }
    act(0, end);
}

static void (*act_on_run)(hz_page_info *run);

static void part_act(size_t first, size_t end)
{
    for (size_t at = first; at < end;) {
        hz_page_info *run = &hz_map.infos[at];
        const bool is_out = run->state == HZ_RUN_OUT;
        at += is_out && !hz_is_fenced() ? run->pages : 1; /* it may hold guarded ones */
        if (is_out || run->state == HZ_RUN_GUARDED) act_on_run(run);
    }
}

void hz_pages_each_out(void (*act)(hz_page_info *run))
{
    act_on_run = act;
    each_part(part_act);
}

/* ---- lists made anew ------------------------------------------------------------------------ */

/* Lists free pages of which any may be resident. With overcommit_memory=2 some may not be writable:
 * then all are purged, as clean pages are made writable before use. If the system refuses that, the
 * child does without these pages. The purge comes while the page pool's lock is held: once, for
 * each purge that another thread had begun when the process forked. */
static void run_list_unknown(size_t first, size_t pages)
{
    if (pages == 0) return;
    if (!hz_os_is_commit_strict())
        hz_run_list_dirty(first, pages, hz_heap_node(), hz_os_now_ms());
    else if (hz_run_purge(first, pages))
        hz_run_list_clean(first, pages);
}

/* Whether a run begins here that is in use, or that the forking thread itself is purging. */
static bool is_kept(const hz_page_info *run)
{
    return run->state == HZ_RUN_OUT || (run->state == HZ_RUN_PURGED && run->purger == hz_lock_me());
}

/* Keeps the runs that are kept, and lists what lies between them as free. */
static void part_rebuild(size_t first, size_t end)
{
    size_t at = first, end_of_kept = first;
    while (at < end) {
        hz_page_info *run = &hz_map.infos[at];
        if (!is_kept(run)) {
            /* a write makes the child copy a page of the kernel */
            if (run->state != HZ_RUN_NONE) run->state = HZ_RUN_NONE;
            at++;
            continue;
        }
        run_list_unknown(end_of_kept, at - end_of_kept);
        at = end_of_kept = at + run->pages;
        if (run->pages > 1) run[run->pages - 1].state = HZ_RUN_NONE;
        if (run->state == HZ_RUN_PURGED) hz_info_link(&hz_page_pool.purging, run);
    }
    run_list_unknown(end_of_kept, at - end_of_kept);
}

static void rebuild(void)
{
    hz_page_pool.clean = (hz_run_lists){.filled = 0};
    for (uint32_t node = 0; node < hz_map.nodes; node++)
        hz_page_pool.dirty[node] = (hz_run_lists){.filled = 0};
    hz_page_pool.purging = NULL;
    hz_atomic_poke(&hz_page_pool.dirty_pages, 0);
    hz_freed_forget(hz_page_pool.top);
    each_part(part_rebuild);
}

/* ---- purges that no thread will end --------------------------------------------------------- */

void hz_purging_end_lost(void)
{
    const uintptr_t survivor = hz_page_pool.survivor;
    const hz_page_info *lost = hz_page_pool.lost;
    if (survivor == 0) return;
    if (lost != NULL) {
        hz_page_pool.lost = NULL;
        (void)hz_os_decline_huge_pages(hz_info_address(lost), (size_t)lost->pages << HZ_PAGE_SHIFT);
        run_list_unknown(hz_info_page(lost), lost->pages);
    }
    for (hz_page_info *run = hz_page_pool.purging, *next; run != NULL; run = next) {
        next = run->next;
        if (run->purger == survivor) continue;
        hz_info_unlink(&hz_page_pool.purging, run);
        run->state = HZ_RUN_NONE;
        run_list_unknown(hz_info_page(run), run->pages);
    }
    hz_page_pool.survivor = 0;
}

/* If the forking thread itself holds the lock, it was interrupted within the page pool and goes on
 * there: then the next sweep ends the purges of other threads. */
void hz_pages_after_fork(void)
{
    (void)hz_lock_inherit(&hz_page_pool.extending);
    if (hz_lock_inherit(&hz_page_pool.lock)) rebuild();
    hz_page_pool.survivor = hz_lock_me();
    if (hz_page_pool.asker != hz_lock_me()) {
        if (hz_page_pool.asked != NULL) hz_page_pool.lost = hz_page_pool.asked;
        hz_page_pool.asked = NULL;
        hz_page_pool.asker = 0;
    }
    if (!hz_lock_try(&hz_page_pool.lock)) return;
    hz_purging_end_lost();
    hz_lock_release(&hz_page_pool.lock);
}
