/*
 * The page pool: dirty pages that are taken out of it, to be returned to the system by purge.c, and
 * come back clean. A sweep goes down from the arena's end in parts, and takes what is old enough.
 */
#include "os.h"
#include "pages.h"

enum {
    CLOCK_LEAD_MS = 60000, /* a page's time may be later than a sweep's, but by less than this */
    SWEEP_PAGES = 4096,    /* most pages that a sweep looks at while it holds the lock */
};

/* How long a page has been dirty; 0 if it became so after the clock was read. */
static uint32_t age_of(size_t page, uint32_t now_ms)
{
    const uint32_t age_ms = now_ms - hz_freed_ms(page);
    return age_ms <= UINT32_MAX - CLOCK_LEAD_MS ? age_ms : 0;
}

static bool is_idle(size_t page, const hz_sweep *sweep)
{
    return hz_freed_ms(page) != 0 && age_of(page, sweep->now_ms) >= sweep->least_ms;
}

static void note_age(size_t page, hz_sweep *sweep)
{
    const uint32_t age_ms = hz_freed_ms(page) != 0 ? age_of(page, sweep->now_ms) : 0;
    if (age_ms > sweep->oldest_ms) sweep->oldest_ms = age_ms;
}

/* Moves down to the next page that is idle; false when there is none in this part. */
static bool sweep_on(hz_sweep *sweep)
{
    if (sweep->below > hz_page_pool.top) sweep->below = hz_page_pool.top;
    const size_t part = sweep->looks < SWEEP_PAGES ? sweep->looks : SWEEP_PAGES;
    const size_t end = sweep->looks - part;
    for (; sweep->below > 0 && sweep->looks > end; sweep->looks--) {
        const size_t page = sweep->below - 1;
        if (is_idle(page, sweep)) return true;
        note_age(page, sweep);
        sweep->below = hz_freed_alike_below(page);
    }
    return false;
}

static void purge_begin(hz_page_info *run)
{
    run->purger = hz_lock_me();
    hz_plain_put(&run->state, (uint8_t)HZ_RUN_PURGED);
    hz_info_link(&hz_page_pool.purging, run);
}

static void purge_end(hz_page_info *run, size_t purged)
{
    const size_t first = hz_info_page(run), pages = run->pages;
    hz_info_unlink(&hz_page_pool.purging, run);
    hz_page_pool.is_refused = purged < pages;
    if (purged > 0 && purged < pages) hz_run_resize(run, purged);
    if (purged < pages)
        hz_run_list_dirty(first + purged, pages - purged, run->node, hz_os_now_ms());
    if (purged > 0) hz_run_list_clean(first, purged);
}

/* Takes dirty pages out of runs that lie side by side. What the system does not purge of them will
 * count as memory of one node, that of the first page. */
static hz_page_info *dirty_take(size_t first, size_t end)
{
    hz_page_info *run = hz_run_around(first);
    const uint32_t node = run->node;
    for (size_t at = first, part; at < end; at += part, run = &hz_map.infos[at]) {
        part = hz_info_page(run) + run->pages - at;
        if (part > end - at) part = end - at;
        hz_run_split(run, at, part);
    }
    return hz_run_mark(first, end - first, HZ_RUN_NONE, node);
}

/* Takes up to `most` pages, down from where the sweep stands, of any nodes. */
static hz_page_info *sweep_take(hz_sweep *sweep, size_t most)
{
    const size_t end = sweep->below;
    size_t first = end - 1;
    while (first > 0 && end - first < most && is_idle(first - 1, sweep)) {
        first--;
        const size_t alike = hz_freed_alike_below(first);
        if (end - alike <= most) first = alike;
    }
    sweep->below = first;
    hz_page_info *run = dirty_take(first, end);
    purge_begin(run);
    return run;
}

hz_page_info *hz_pages_sweep(hz_sweep *sweep, size_t most)
{
    hz_lock_take(&hz_page_pool.lock);
    hz_purging_end_lost();
    const size_t looks = sweep->looks;
    hz_page_info *run = sweep_on(sweep) ? sweep_take(sweep, most) : NULL;
    hz_count(HZ_STAT_purge_looks, looks - sweep->looks);
    hz_lock_release(&hz_page_pool.lock);
    return run;
}

void hz_pages_swept(hz_page_info *run, size_t purged)
{
    hz_lock_take(&hz_page_pool.lock);
    purge_end(run, purged);
    hz_lock_release(&hz_page_pool.lock);
}
