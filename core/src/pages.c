/*
 * The page heap: free runs of pages, split, joined, and given back to the system when they have
 * been idle.
 *
 * A free run is clean (reads as zero, costs nothing) or dirty (still resident). Dirty runs are used
 * first, and are kept in order of age: the oldest are purged when purge_delay_ms has passed, or at
 * once when together they exceed large_cache_bytes. A large block may take a dirty run that is too
 * short and what is missing from the clean run beside it. Both ends of a free run carry its state,
 * so that neighbours find each other.
 */
#include "internal.h"
#include "os.h"

enum {
    LISTS = 64,
    EXACT_LISTS =
        16,      /* runs of 1..16 pages have a list each; longer ones four lists to a doubling */
    PROBES = 64, /* long runs that are looked at for one that fits */
    EXTEND_PAGES = 16,  /* least extension of the arena: 1 MiB */
    PURGE_PAGES = 16,   /* least part of a run that is purged alone */
    STRETCH_PAGES = 16, /* least request for which a dirty run is made longer by clean pages */
};

typedef struct run_lists {
    hz_span *first[LISTS]; /* doubly linked through next and previous */
    uint64_t filled;       /* a bit for each list that is not empty */
} run_lists;

static struct {
    hz_lock lock; /* guards the rest, and the spans of free runs */
    run_lists clean, dirty;
    hz_span *oldest, *newest; /* dirty runs by age */
    hz_span *purging;         /* runs that threads are purging just now */
    hz_span *gaps;            /* the last pages of those gaps that the arena has left, from above */
    size_t dirty_pages;
    size_t top; /* pages that ever came from the arena */
} heap;

static size_t index_of(const hz_span *run)
{
    return (size_t)(run - hz_map.spans);
}

/* ---- lists ---------------------------------------------------------------------------------- */

static unsigned list_of(size_t pages)
{
    if (pages <= EXACT_LISTS) return (unsigned)pages - 1;
    unsigned log2 = 63u - (unsigned)__builtin_clzl(pages);
    unsigned list = EXACT_LISTS + 4 * (log2 - 4) + (unsigned)((pages >> (log2 - 2)) & 3);
    return list < LISTS ? list : LISTS - 1;
}

static run_lists *lists_for(hz_span_state state)
{
    return state == HZ_SPAN_DIRTY ? &heap.dirty : &heap.clean;
}

static void age_append(hz_span *run)
{
    run->newer = NULL;
    run->older = heap.newest;
    if (heap.newest != NULL)
        heap.newest->newer = run;
    else
        heap.oldest = run;
    heap.newest = run;
    heap.dirty_pages += run->pages;
}

static void age_remove(hz_span *run)
{
    if (run->older != NULL)
        run->older->newer = run->newer;
    else
        heap.oldest = run->newer;
    if (run->newer != NULL)
        run->newer->older = run->older;
    else
        heap.newest = run->older;
    heap.dirty_pages -= run->pages;
}

static void list_insert(hz_span *run)
{
    run_lists *lists = lists_for(run->state);
    unsigned list = list_of(run->pages);
    run->previous = NULL;
    run->next = lists->first[list];
    if (run->next != NULL) run->next->previous = run;
    lists->first[list] = run;
    lists->filled |= UINT64_C(1) << list;
    if (run->state == HZ_SPAN_DIRTY) age_append(run);
}

static void list_remove(hz_span *run)
{
    run_lists *lists = lists_for(run->state);
    unsigned list = list_of(run->pages);
    if (run->next != NULL) run->next->previous = run->previous;
    if (run->previous != NULL)
        run->previous->next = run->next;
    else
        lists->first[list] = run->next;
    if (lists->first[list] == NULL) lists->filled &= ~(UINT64_C(1) << list);
    if (run->state == HZ_SPAN_DIRTY) age_remove(run);
}

/* ---- runs ----------------------------------------------------------------------------------- */

/* Writes a run into the span table; both ends of it bear its state. */
static hz_span *run_mark(size_t first, size_t pages, hz_span_state state)
{
    hz_span *run = &hz_map.spans[first];
    hz_span *last = &hz_map.spans[first + pages - 1];
    last->state = (uint8_t)state;
    last->head = (uint32_t)first;
    run->state = (uint8_t)state;
    run->head = (uint32_t)first;
    run->pages = (uint32_t)pages;
    return run;
}

/* From now on a run counts as in use, also for the child of a fork, which may see it half made. */
static void run_put_out(hz_span *run)
{
    hz_plain_put(&run->state, (uint8_t)HZ_SPAN_OUT);
}

/* Makes a run in use longer or shorter; at each instant it is the one or the other. */
static void run_resize(hz_span *run, size_t pages)
{
    hz_span *last = &run[pages - 1];
    last->head = (uint32_t)index_of(run);
    if (last != run) last->state = HZ_SPAN_BUSY;
    hz_plain_put(&run->pages, (uint32_t)pages);
}

/* Frees pages [first, first + pages), joined with free neighbours of the same state. */
static hz_span *run_release(size_t first, size_t pages, hz_span_state state, uint32_t freed_ms)
{
    (void)hz_plain_swap(&hz_map.spans[first].state, (uint8_t)HZ_SPAN_BUSY); /* not in use */
    const hz_span *left = first > 0 ? &hz_map.spans[first - 1] : NULL;
    if (left != NULL && left->state == state) {
        hz_span *neighbour = &hz_map.spans[left->head];
        list_remove(neighbour);
        first = index_of(neighbour);
        pages += neighbour->pages;
    }
    hz_span *right = first + pages < heap.top ? &hz_map.spans[first + pages] : NULL;
    if (right != NULL && right->state == state) {
        list_remove(right);
        pages += right->pages;
    }
    hz_span *run = run_mark(first, pages, state);
    run->freed_ms = freed_ms;
    list_insert(run);
    return run;
}

/* Takes [first, first + pages) out of a free run that contains it; what is left over stays free. */
static hz_span *run_carve(hz_span *run, size_t first, size_t pages, hz_span_state state)
{
    size_t start = index_of(run), end = start + run->pages;
    hz_span_state rest = run->state;
    uint32_t freed_ms = run->freed_ms;
    list_remove(run);
    hz_span *taken = run_mark(first, pages, state);
    if (start < first) run_release(start, first - start, rest, freed_ms);
    if (first + pages < end) run_release(first + pages, end - first - pages, rest, freed_ms);
    return taken;
}

/* ---- finding -------------------------------------------------------------------------------- */

/* The lowest run that is long enough, among the first `probes` of a list and `lowest`. */
static hz_span *list_search(hz_span *run, size_t pages, int *probes, hz_span *lowest)
{
    for (; run != NULL && *probes > 0; --*probes, run = run->next) {
        if (run->pages >= pages && (lowest == NULL || run < lowest)) lowest = run;
    }
    return lowest;
}

/* Of long runs the lowest, so that what is in use stays close together; of short ones, of which
 * there may be very many, one of the shortest. */
static hz_span *lists_search(const run_lists *lists, size_t pages)
{
    const unsigned list = list_of(pages);
    const int most = pages > EXACT_LISTS ? PROBES : 1;
    int probes = most;
    hz_span *lowest = list_search(lists->first[list], pages, &probes, NULL);
    if (list == LISTS - 1 || (lowest != NULL && most == 1)) return lowest;
    uint64_t longer = lists->filled & ~((UINT64_C(2) << list) - 1);
    for (probes = most; longer != 0; longer &= longer - 1)
        lowest = list_search(lists->first[__builtin_ctzll(longer)], pages, &probes, lowest);
    return lowest;
}

/* Pages from `top` to `end` that the arena has passed over. The last of them notes it: of the
 * others there may be no entries. */
static void note_gap(size_t end)
{
    if (end == heap.top) return;
    hz_span *last = &hz_map.spans[end - 1];
    last->pages = (uint32_t)(end - heap.top);
    last->next = heap.gaps;
    hz_plain_put(&heap.gaps, last);
}

static hz_span *extend(size_t pages)
{
    size_t first;
    size_t generous = pages < EXTEND_PAGES ? EXTEND_PAGES : pages;
    if (!hz_arena_extend(generous, &first)) {
        generous = pages;
        if (!hz_arena_extend(pages, &first)) return NULL;
    }
    note_gap(first);
    hz_plain_put(&heap.top, first + generous);
    return run_release(first, generous, HZ_SPAN_CLEAN, 0);
}

/* Frees [first, first + pages), of which a dirty run is one end and the rest belongs to a clean
 * neighbour, as a dirty run; it may begin earlier and end later. NULL when the system refuses. */
static hz_span *run_join(hz_span *dirty, hz_span *clean, size_t first, size_t pages)
{
    const uint32_t freed_ms = dirty->freed_ms;
    const size_t more = pages - dirty->pages;
    const size_t more_first = clean < dirty ? first : first + dirty->pages;
    if (!hz_arena_reuse(more_first, more)) return NULL;
    run_carve(clean, more_first, more, HZ_SPAN_BUSY);
    list_remove(dirty);
    return run_release(first, pages, HZ_SPAN_DIRTY, freed_ms);
}

/* Makes a dirty run longer by a part of a clean neighbour; NULL when none suffices. */
static hz_span *stretch(hz_span *run, size_t pages)
{
    if (run->pages >= pages) return run;
    const size_t first = index_of(run), end = first + run->pages;
    hz_span *right = end < heap.top ? &hz_map.spans[end] : NULL;
    if (right != NULL && right->state == HZ_SPAN_CLEAN && run->pages + right->pages >= pages)
        return run_join(run, right, first, pages);
    if (first == 0 || hz_map.spans[first - 1].state != HZ_SPAN_CLEAN) return NULL;
    hz_span *left = &hz_map.spans[hz_map.spans[first - 1].head];
    if (left->pages + run->pages < pages) return NULL;
    return run_join(run, left, end - pages, pages);
}

/* A shorter one saves little, and would cut up the clean runs. */
static bool is_worth_stretching(const hz_span *run, size_t pages)
{
    return run->pages >= pages / 2;
}

/* Stretches a dirty run, if possible a long one: what must be faulted in is less than of a clean
 * run, and so is what becomes resident. */
static hz_span *stretch_any(size_t pages)
{
    const unsigned shortest = list_of(pages / 2);
    uint64_t filled = heap.dirty.filled >> shortest << shortest;
    for (int probes = 0; filled != 0;) {
        const unsigned list = 63u - (unsigned)__builtin_clzl(filled);
        filled ^= UINT64_C(1) << list;
        for (hz_span *run = heap.dirty.first[list]; run != NULL; run = run->next) {
            hz_span *stretched = is_worth_stretching(run, pages) ? stretch(run, pages) : NULL;
            if (stretched != NULL || ++probes == PROBES) return stretched;
        }
    }
    return NULL;
}

/* Extends the arena; by what is missing only, if its end is a dirty run that is worth it. */
static hz_span *extend_last(size_t pages)
{
    const hz_span *last = heap.top > 0 ? &hz_map.spans[heap.top - 1] : NULL;
    if (last == NULL || last->state != HZ_SPAN_DIRTY) return extend(pages);
    hz_span *run = &hz_map.spans[last->head];
    if (run->pages >= pages) return run;
    if (!is_worth_stretching(run, pages)) return extend(pages);
    hz_span *stretched = extend(pages - run->pages) != NULL ? stretch(run, pages) : NULL;
    return stretched != NULL ? stretched : extend(pages);
}

static hz_span *find(size_t pages, bool may_stretch)
{
    hz_span *run = lists_search(&heap.dirty, pages);
    if (run == NULL && may_stretch) run = stretch_any(pages);
    if (run == NULL) run = lists_search(&heap.clean, pages);
    if (run == NULL) run = may_stretch ? extend_last(pages) : extend(pages);
    return run;
}

hz_span *hz_pages_alloc(size_t pages, size_t align, bool *zeroed)
{
    const bool may_stretch = zeroed == NULL && align == 1 && pages >= STRETCH_PAGES;
    if (pages + align > UINT32_MAX) return NULL;
    hz_lock_take(&heap.lock);
    hz_span *run = find(pages + align - 1, may_stretch);
    if (run != NULL) {
        size_t base_page =
            hz_map.base >> HZ_PAGE_SHIFT; /* alignment is of addresses, not of indices */
        size_t first = ((base_page + index_of(run) + align - 1) & ~(align - 1)) - base_page;
        const bool is_clean = run->state == HZ_SPAN_CLEAN;
        if (zeroed != NULL) *zeroed = is_clean;
        if (!is_clean) hz_count(HZ_STAT_pages_reused, 1);
        const bool is_usable = !is_clean || hz_arena_reuse(first, pages);
        run = is_usable ? run_carve(run, first, pages, HZ_SPAN_BUSY) : NULL;
        if (run != NULL) run_put_out(run);
    }
    hz_lock_release(&heap.lock);
    return run;
}

/* ---- purging -------------------------------------------------------------------------------- */

static void purging_insert(hz_span *run)
{
    run->previous = NULL;
    run->next = heap.purging;
    if (run->next != NULL) run->next->previous = run;
    heap.purging = run;
}

static void purge_begin(hz_span *run)
{
    run->purger = hz_lock_me();
    hz_plain_put(&run->state, (uint8_t)HZ_SPAN_PURGED);
    purging_insert(run);
}

static void purge_end(hz_span *run, bool purged)
{
    if (run->next != NULL) run->next->previous = run->previous;
    if (run->previous != NULL)
        run->previous->next = run->next;
    else
        heap.purging = run->next;
    const hz_span_state state = purged ? HZ_SPAN_CLEAN : HZ_SPAN_DIRTY;
    run_release(index_of(run), run->pages, state, hz_os_now_ms());
}

/* Returns up to `pages` pages of the oldest dirty run to the system; the lock is not held
 * meanwhile. */
static bool purge_oldest(size_t pages)
{
    hz_span *run = heap.oldest;
    if (pages < PURGE_PAGES) pages = PURGE_PAGES;
    if (pages > run->pages) pages = run->pages;
    run = run_carve(run, index_of(run), pages, HZ_SPAN_BUSY);
    purge_begin(run);
    hz_lock_release(&heap.lock);

    size_t bytes = pages << HZ_PAGE_SHIFT;
    bool purged = hz_run_purge(run);
    if (purged) {
        hz_count(HZ_STAT_purges, 1);
        hz_count(HZ_STAT_purged_bytes, bytes);
    }

    hz_lock_take(&heap.lock);
    purge_end(run, purged);
    return purged;
}

static void purge_excess(void)
{
    size_t keep = (size_t)hz_cfg.large_cache_bytes >> HZ_PAGE_SHIFT;
    while (heap.dirty_pages > keep) {
        hz_count(HZ_STAT_purges_forced, 1);
        if (!purge_oldest(heap.dirty_pages - keep)) return;
    }
}

/* The clock is read anew for each, as the lock was not held meanwhile: what was freed since then
 * would seem to be from the far past. */
static void purge_aged(void)
{
    uint32_t delay_ms = (uint32_t)hz_cfg.purge_delay_ms;
    while (heap.oldest != NULL && hz_os_now_ms() - heap.oldest->freed_ms >= delay_ms) {
        if (!purge_oldest(heap.oldest->pages)) return;
    }
}

void hz_pages_free(hz_span *run)
{
    uint32_t now_ms = hz_os_now_ms();
    hz_lock_take(&heap.lock);
    run_release(index_of(run), run->pages, HZ_SPAN_DIRTY, now_ms);
    purge_excess();
    purge_aged();
    hz_lock_release(&heap.lock);
}

void hz_pages_free_clean(hz_span *run)
{
    hz_lock_take(&heap.lock);
    run_release(index_of(run), run->pages, HZ_SPAN_CLEAN, 0);
    hz_lock_release(&heap.lock);
}

void hz_pages_purge_old(void)
{
    if (!hz_lock_try(&heap.lock)) return; /* whoever holds it will purge as well */
    purge_aged();
    hz_lock_release(&heap.lock);
}

bool hz_pages_purge_all(void)
{
    bool any = false;
    hz_lock_take(&heap.lock);
    while (heap.oldest != NULL && purge_oldest(heap.oldest->pages)) any = true;
    hz_lock_release(&heap.lock);
    return any;
}

size_t hz_pages_free_bytes(void)
{
    hz_lock_take(&heap.lock);
    size_t bytes = heap.dirty_pages << HZ_PAGE_SHIFT;
    hz_lock_release(&heap.lock);
    return bytes;
}

/* ---- resizing ------------------------------------------------------------------------------- */

static bool grow(hz_span *run, size_t pages)
{
    size_t first = index_of(run), end = first + run->pages;
    size_t more = pages - run->pages;
    hz_span *right = end < heap.top ? &hz_map.spans[end] : NULL;
    if (right == NULL || (right->state != HZ_SPAN_CLEAN && right->state != HZ_SPAN_DIRTY))
        return false;
    if (right->pages < more) return false;
    if (right->state == HZ_SPAN_CLEAN && !hz_arena_reuse(end, more)) return false;
    run_carve(right, end, more, HZ_SPAN_BUSY);
    run_resize(run, pages);
    return true;
}

static void shrink(hz_span *run, size_t pages)
{
    size_t first = index_of(run), end = first + run->pages;
    run_resize(run, pages);
    run_release(first + pages, end - first - pages, HZ_SPAN_DIRTY, hz_os_now_ms());
    purge_excess();
}

bool hz_pages_resize(hz_span *run, size_t pages)
{
    bool done = true;
    hz_lock_take(&heap.lock);
    if (pages > run->pages)
        done = grow(run, pages);
    else if (pages < run->pages)
        shrink(run, pages);
    hz_lock_release(&heap.lock);
    return done;
}

/* ---- fork ----------------------------------------------------------------------------------- */

/* Acts on all parts of the table of spans between two gaps. A gap at or above the end of a part is
 * one that a thread was noting which a fork lost. */
static void each_part(void (*act)(size_t first, size_t end))
{
    size_t end = heap.top;
    for (const hz_span *gap = heap.gaps; gap != NULL; gap = gap->next) {
        if (index_of(gap) >= end) continue;
        act(index_of(gap) + 1, end);
        end = index_of(gap) + 1 - gap->pages;
    }
    act(0, end);
}

static void (*act_on_run)(hz_span *run);

static void part_act(size_t first, size_t end)
{
    for (size_t at = first; at < end;) {
        hz_span *run = &hz_map.spans[at];
        const bool is_out = run->state == HZ_SPAN_OUT;
        at += is_out && !hz_is_fenced() ? run->pages : 1; /* guarded runs lie within others */
        if (is_out || run->state == HZ_SPAN_GUARDED) act_on_run(run);
    }
}

void hz_pages_each_out(void (*act)(hz_span *run))
{
    act_on_run = act;
    each_part(part_act);
}

/* Whether a run begins here that is in use, or that the thread itself is purging. */
static bool is_kept(const hz_span *run)
{
    return run->state == HZ_SPAN_OUT ||
           (run->state == HZ_SPAN_PURGED && run->purger == hz_lock_me());
}

static void keep(hz_span *run)
{
    if (run->pages > 1) run[run->pages - 1].state = HZ_SPAN_BUSY;
    if (run->state == HZ_SPAN_PURGED) purging_insert(run);
}

static void free_anew(size_t first, size_t end)
{
    if (first == end) return;
    hz_span *run = run_mark(first, end - first, HZ_SPAN_DIRTY);
    run->freed_ms = hz_os_now_ms();
    list_insert(run);
}

/* Of the runs that are kept; what lies between them is free, and nobody knows whether it is clean.
 */
static void part_rebuild(size_t first, size_t end)
{
    size_t at = first, end_of_kept = first;
    while (at < end) {
        hz_span *run = &hz_map.spans[at];
        if (!is_kept(run)) {
            run->state = HZ_SPAN_BUSY;
            at++;
            continue;
        }
        free_anew(end_of_kept, at);
        at = end_of_kept = at + run->pages;
        keep(run);
    }
    free_anew(end_of_kept, at);
}

static void rebuild(void)
{
    heap.clean = heap.dirty = (run_lists){.filled = 0};
    heap.oldest = heap.newest = heap.purging = NULL;
    heap.dirty_pages = 0;
    each_part(part_rebuild);
}

/* Runs that other threads were purging are free again. */
static void end_lost_purges(void)
{
    for (hz_span *run = heap.purging, *next; run != NULL; run = next) {
        next = run->next;
        if (run->purger != hz_lock_me()) purge_end(run, false);
    }
}

/* Where the thread itself was interrupted within the page heap, it goes on there: what others were
 * purging then is lost. */
void hz_pages_after_fork(void)
{
    if (hz_lock_inherit(&heap.lock)) rebuild();
    if (!hz_lock_try(&heap.lock)) return;
    end_lost_purges();
    hz_lock_release(&heap.lock);
}
