/*
 * The page pool: free runs of pages, split and joined.
 *
 * A free run is clean (reads as zero, costs nothing) or dirty (still resident). Dirty runs are used
 * first. A large block may take a dirty run that is too short and what is missing from the clean
 * run beside it. Both ends of a free run carry its state, so that neighbours find each other.
 *
 * Each dirty page keeps the time of its own free (freed.c) when runs are split and joined. purge.c
 * decides which of them go back to the system.
 *
 * A clean page gets its memory from the node of the thread that first touches it, by the kernel's
 * rule, and so it belongs to that node while it is in use or dirty. Dirty runs of different nodes
 * are listed apart, and not joined. A thread gets a dirty run of its own node, else a clean one.
 * But while more than max_dirty_bytes are dirty, which is to end, it gets a dirty one of another
 * node before a clean one: else threads that take turns on the nodes would need that much memory on
 * each. And where the system has no more memory, whatever is free serves: runs of other nodes, and
 * free runs side by side, whatever their nodes and states.
 */
#include "os.h"
#include "pages.h"

enum {
    EXACT_LISTS = 16,   /* up to this a list for each length, above it four to a doubling */
    PROBES = 64,        /* long runs that are looked at for one that fits */
    EXTEND_PAGES = 16,  /* least extension of the arena: 1 MiB */
    STRETCH_PAGES = 16, /* least request for which a dirty run is made longer by clean pages */
    CLEAR_PAGES = 32,   /* from here on, a request for zeroes may prefer clean runs */
};

_Static_assert(EXACT_LISTS == 1 << 4, "list_number continues at the doubling of 2^4 pages");

/* Which runs serve a request. */
typedef enum run_taste {
    DIRTY_TOO,   /* dirty or clean ones */
    MAY_STRETCH, /* dirty ones that are made longer, too */
    CLEAN_ONLY,  /* only clean ones, while there are any */
} run_taste;

hz_page_pool_t hz_page_pool;

size_t hz_pages_dirty(void)
{
    return hz_atomic_peek(&hz_page_pool.dirty_pages);
}

/* ---- lists ---------------------------------------------------------------------------------- */

static unsigned list_number(size_t pages)
{
    if (pages <= EXACT_LISTS) return (unsigned)pages - 1;
    unsigned log2 = 63u - (unsigned)__builtin_clzl(pages);
    unsigned list = EXACT_LISTS + 4 * (log2 - 4) + (unsigned)((pages >> (log2 - 2)) & 3);
    return list < HZ_RUN_LISTS ? list : HZ_RUN_LISTS - 1;
}

static hz_run_lists *lists_for(const hz_page_info *run)
{
    return run->state == HZ_RUN_DIRTY ? &hz_page_pool.dirty[run->node] : &hz_page_pool.clean;
}

static void count_dirty(const hz_page_info *run, size_t pages)
{
    if (run->state == HZ_RUN_DIRTY)
        hz_atomic_poke(&hz_page_pool.dirty_pages,
                       hz_atomic_peek(&hz_page_pool.dirty_pages) + pages);
}

static void list_insert(hz_page_info *run)
{
    hz_run_lists *lists = lists_for(run);
    unsigned list = list_number(run->pages);
    hz_info_link(&lists->first[list], run);
    lists->filled |= UINT64_C(1) << list;
    count_dirty(run, run->pages);
}

static void list_remove(hz_page_info *run)
{
    hz_run_lists *lists = lists_for(run);
    unsigned list = list_number(run->pages);
    hz_info_unlink(&lists->first[list], run);
    if (lists->first[list] == NULL) lists->filled &= ~(UINT64_C(1) << list);
    count_dirty(run, -(size_t)run->pages);
}

/* ---- runs ----------------------------------------------------------------------------------- */

hz_page_info *hz_run_mark(size_t first, size_t pages, hz_run_state state, uint32_t node)
{
    hz_page_info *run = &hz_map.infos[first];
    hz_page_info *last = &hz_map.infos[first + pages - 1];
    last->state = run->state = (uint8_t)state;
    last->node = run->node = (uint8_t)node;
    last->head = run->head = (uint32_t)first;
    run->pages = (uint32_t)pages;
    return run;
}

void hz_run_resize(hz_page_info *run, size_t pages)
{
    hz_page_info *last = &run[pages - 1];
    last->head = (uint32_t)hz_info_page(run);
    if (last != run) last->state = HZ_RUN_NONE;
    hz_plain_put(&run->pages, (uint32_t)pages);
}

/* Whether a page is an end of such a free run. */
static bool is_end_of(const hz_page_info *page, hz_run_state state, uint32_t node)
{
    return page != NULL && page->state == state && page->node == node;
}

/* Lists pages [first, first + pages), joined with free neighbours of the same state and node. */
static void run_list(size_t first, size_t pages, hz_run_state state, uint32_t node)
{
    (void)hz_plain_swap(&hz_map.infos[first].state, (uint8_t)HZ_RUN_NONE); /* not in use */
    const hz_page_info *left = first > 0 ? &hz_map.infos[first - 1] : NULL;
    if (is_end_of(left, state, node)) {
        hz_page_info *neighbour = &hz_map.infos[left->head];
        list_remove(neighbour);
        first = hz_info_page(neighbour);
        pages += neighbour->pages;
    }
    hz_page_info *right = first + pages < hz_page_pool.top ? &hz_map.infos[first + pages] : NULL;
    if (is_end_of(right, state, node)) {
        list_remove(right);
        pages += right->pages;
    }
    list_insert(hz_run_mark(first, pages, state, node));
}

void hz_run_list_clean(size_t first, size_t pages)
{
    run_list(first, pages, HZ_RUN_CLEAN, 0);
}

void hz_run_list_dirty(size_t first, size_t pages, uint32_t node, uint32_t now_ms)
{
    hz_freed_put(first, pages, now_ms != 0 ? now_ms : 1);
    run_list(first, pages, HZ_RUN_DIRTY, node);
}

/* The run, or a neighbour of it of another node, ends where the next page is not dirty. */
hz_page_info *hz_run_around(size_t page)
{
    size_t last = page;
    while (last + 1 < hz_page_pool.top && hz_freed_ms(last + 1) != 0)
        last = hz_freed_alike_above(last + 1);
    size_t first = hz_map.infos[last].head;
    while (first > page) first = hz_map.infos[first - 1].head;
    return &hz_map.infos[first];
}

hz_page_info *hz_run_split(hz_page_info *run, size_t first, size_t pages)
{
    const size_t start = hz_info_page(run), end = start + run->pages;
    const hz_run_state state = run->state;
    const uint32_t node = run->node;
    list_remove(run);
    if (state == HZ_RUN_DIRTY) hz_freed_put(first, pages, 0);
    hz_page_info *taken = hz_run_mark(first, pages, HZ_RUN_NONE, node);
    if (start < first) run_list(start, first - start, state, node);
    if (first + pages < end) run_list(first + pages, end - first - pages, state, node);
    return taken;
}

/* ---- finding -------------------------------------------------------------------------------- */

/* The lowest run that is long enough, among the first `probes` of a list and `lowest`. */
static hz_page_info *list_search(hz_page_info *run, size_t pages, int *probes, hz_page_info *lowest)
{
    for (; run != NULL && *probes > 0; --*probes, run = run->next) {
        if (run->pages >= pages && (lowest == NULL || run < lowest)) lowest = run;
    }
    return lowest;
}

/* Of long runs the lowest is taken, so that the memory in use stays close together. Of short runs
 * there may be very many: one of the shortest is taken. */
static hz_page_info *lists_search(const hz_run_lists *lists, size_t pages)
{
    const unsigned list = list_number(pages);
    const int most = pages > EXACT_LISTS ? PROBES : 1;
    int probes = most;
    hz_page_info *lowest = list_search(lists->first[list], pages, &probes, NULL);
    if (list == HZ_RUN_LISTS - 1 || (lowest != NULL && most == 1)) return lowest;
    uint64_t longer = lists->filled & ~((UINT64_C(2) << list) - 1);
    for (probes = most; longer != 0; longer &= longer - 1)
        lowest = list_search(lists->first[__builtin_ctzll(longer)], pages, &probes, lowest);
    return lowest;
}

/* Joins a dirty run with a part of its clean neighbour; together they are [first, first + pages).
 * The result is the dirty run that contains both, NULL when the system refuses. */
static hz_page_info *run_join(hz_page_info *dirty, hz_page_info *clean, size_t first, size_t pages)
{
    const size_t dirty_first = hz_info_page(dirty), more = pages - dirty->pages;
    const size_t more_first = clean < dirty ? first : dirty_first + dirty->pages;
    if (!hz_arena_reuse(more_first, more)) return NULL;
    hz_run_split(clean, more_first, more);
    hz_run_list_dirty(more_first, more, dirty->node, hz_freed_ms(dirty_first));
    return hz_run_around(first);
}

/* Makes a dirty run longer by a part of a clean neighbour; NULL when none suffices. */
static hz_page_info *run_stretch(hz_page_info *run, size_t pages)
{
    if (run->pages >= pages) return run;
    const size_t first = hz_info_page(run), end = first + run->pages;
    hz_page_info *right = end < hz_page_pool.top ? &hz_map.infos[end] : NULL;
    if (right != NULL && right->state == HZ_RUN_CLEAN && run->pages + right->pages >= pages)
        return run_join(run, right, first, pages);
    if (first == 0 || hz_map.infos[first - 1].state != HZ_RUN_CLEAN) return NULL;
    hz_page_info *left = &hz_map.infos[hz_map.infos[first - 1].head];
    if (left->pages + run->pages < pages) return NULL;
    return run_join(run, left, end - pages, pages);
}

/* A run of less than half the length saves little, and would split clean runs. */
static bool is_worth_stretching(const hz_page_info *run, size_t pages)
{
    return run->pages >= pages / 2;
}

/* Stretches a dirty run, a long one if possible. That faults in fewer pages than a clean run, and
 * fewer become resident. */
static hz_page_info *stretch_any(const hz_run_lists *dirty, size_t pages)
{
    const unsigned shortest = list_number(pages / 2);
    uint64_t filled = dirty->filled >> shortest << shortest;
    for (int probes = 0; filled != 0;) {
        const unsigned list = 63u - (unsigned)__builtin_clzl(filled);
        filled ^= UINT64_C(1) << list;
        for (hz_page_info *run = dirty->first[list]; run != NULL; run = run->next) {
            hz_page_info *stretched =
                is_worth_stretching(run, pages) ? run_stretch(run, pages) : NULL;
            if (stretched != NULL || ++probes == PROBES) return stretched;
        }
    }
    return NULL;
}

/* Whether some dirty pages go back to the system at once. */
static bool is_too_much_dirty(void)
{
    return hz_pages_dirty() > hz_max_dirty_bytes() >> HZ_PAGE_SHIFT;
}

/* A dirty run of a node that is at least so far behind this one, in turn. */
static hz_page_info *nodes_search(size_t pages, uint32_t node, uint32_t distance)
{
    hz_page_info *run = NULL;
    for (; run == NULL && distance < hz_map.nodes; distance++)
        run = lists_search(&hz_page_pool.dirty[(node + distance) % hz_map.nodes], pages);
    return run;
}

static hz_page_info *run_find(size_t pages, uint32_t node, run_taste taste)
{
    const hz_run_lists *dirty = &hz_page_pool.dirty[node];
    hz_page_info *run = taste != CLEAN_ONLY ? lists_search(dirty, pages) : NULL;
    if (run == NULL && taste == MAY_STRETCH) run = stretch_any(dirty, pages);
    if (run == NULL && taste != CLEAN_ONLY && hz_map.nodes > 1 && is_too_much_dirty())
        run = nodes_search(pages, node, 1);
    return run != NULL ? run : lists_search(&hz_page_pool.clean, pages);
}

/* ---- finding where the system has no more memory -------------------------------------------- */

/* Whether a page that follows a run, or precedes one, belongs to a free run. */
static bool is_free(const hz_page_info *page, bool with_clean)
{
    return page->state == HZ_RUN_DIRTY || (with_clean && page->state == HZ_RUN_CLEAN);
}

/* How many free pages lie side by side from such a page on. */
static size_t free_length(size_t first, bool with_clean)
{
    size_t end = first;
    while (end < hz_page_pool.top && is_free(&hz_map.infos[end], with_clean))
        end += hz_map.infos[end].pages;
    return end - first;
}

/* How many of the free pages that begin with `run` are of this run and not beyond `end`. */
static size_t part_before(const hz_page_info *run, size_t end)
{
    const size_t left = end - hz_info_page(run);
    return run->pages < left ? run->pages : left;
}

/* Takes the first `pages` pages out of free runs that lie side by side; false when the system
 * refuses those that are clean. */
static bool runs_take(size_t first, size_t pages)
{
    const size_t end = first + pages;
    for (size_t at = first, part; at < end; at += part) {
        part = part_before(&hz_map.infos[at], end);
        if (hz_map.infos[at].state == HZ_RUN_CLEAN && !hz_arena_reuse(at, part)) return false;
    }
    for (size_t at = first, part; at < end; at += part) {
        part = part_before(&hz_map.infos[at], end);
        hz_run_split(&hz_map.infos[at], at, part);
    }
    return true;
}

/* Makes free runs that lie side by side one dirty run, if `run` is the first of them and they are
 * long enough. From now on all of it counts as the memory of `node`. */
static hz_page_info *runs_join(const hz_page_info *run, size_t pages, uint32_t node,
                               bool with_clean)
{
    const size_t first = hz_info_page(run);
    if (!is_free(run, with_clean) || (first > 0 && is_free(run - 1, with_clean))) return NULL;
    if (free_length(first, with_clean) < pages || !runs_take(first, pages)) return NULL;
    hz_run_list_dirty(first, pages, node, hz_os_now_ms());
    return hz_run_around(first);
}

static hz_page_info *join_any_of(const hz_run_lists *lists, size_t pages, uint32_t node,
                                 bool with_clean)
{
    for (uint64_t filled = lists->filled; filled != 0; filled &= filled - 1) {
        const hz_page_info *run = lists->first[__builtin_ctzll(filled)];
        for (; run != NULL; run = run->next) {
            hz_page_info *joined = runs_join(run, pages, node, with_clean);
            if (joined != NULL) return joined;
        }
    }
    return NULL;
}

static hz_page_info *join_any(size_t pages, uint32_t node, bool with_clean)
{
    hz_page_info *run =
        with_clean ? join_any_of(&hz_page_pool.clean, pages, node, with_clean) : NULL;
    for (uint32_t other = 0; run == NULL && other < hz_map.nodes; other++)
        run = join_any_of(&hz_page_pool.dirty[other], pages, node, with_clean);
    return run;
}

/* A dirty run of any node, or one that is joined of others; at last without clean ones, which the
 * system may refuse. */
static hz_page_info *find_anywhere(size_t pages, uint32_t node)
{
    hz_page_info *run = nodes_search(pages, node, 0);
    if (run == NULL) run = join_any(pages, node, true);
    if (run == NULL && hz_os_is_commit_strict()) run = join_any(pages, node, false);
    return run;
}

/* ---- extending the arena -------------------------------------------------------------------- */

/* The dirty run at the arena's end, if it is worth stretching. */
static hz_page_info *last_run(size_t pages, uint32_t node)
{
    const hz_page_info *last = hz_page_pool.top > 0 ? &hz_map.infos[hz_page_pool.top - 1] : NULL;
    if (!is_end_of(last, HZ_RUN_DIRTY, node)) return NULL;
    hz_page_info *run = &hz_map.infos[last->head];
    return is_worth_stretching(run, pages) ? run : NULL;
}

/* Notes a gap of the arena, from `top` to `end`, in its last page: the others may have no
 * infos. */
static void note_gap(size_t end)
{
    if (end == hz_page_pool.top) return;
    hz_page_info *last = &hz_map.infos[end - 1];
    last->pages = (uint32_t)(end - hz_page_pool.top);
    last->next = hz_page_pool.gaps;
    hz_plain_put(&hz_page_pool.gaps, last);
}

static void pages_add(size_t first, size_t pages)
{
    hz_lock_take(&hz_page_pool.lock);
    note_gap(first);
    hz_plain_put(&hz_page_pool.top, first + pages);
    hz_run_list_clean(first, pages);
    hz_lock_release(&hz_page_pool.lock);
}

/* Adds at least `pages` pages. While the system makes them usable, the page pool is not locked:
 * only threads that also extend the arena wait. */
static bool pages_extend(size_t pages)
{
    size_t first, generous = pages < EXTEND_PAGES ? EXTEND_PAGES : pages;
    hz_lock_release(&hz_page_pool.lock);
    hz_lock_take(&hz_page_pool.extending);
    bool done = hz_arena_extend(generous, &first);
    if (!done && generous > pages) {
        generous = pages;
        done = hz_arena_extend(generous, &first);
    }
    done = done && hz_freed_make(first, generous);
    if (done) pages_add(first, generous);
    hz_lock_release(&hz_page_pool.extending); /* may wake a thread, which is a system call */
    hz_lock_take(&hz_page_pool.lock);
    return done;
}

/* How many free pages lie at the arena's end. */
static size_t free_at_end(void)
{
    size_t first = hz_page_pool.top;
    while (first > 0 && is_free(&hz_map.infos[first - 1], true))
        first = hz_map.infos[first - 1].head;
    return hz_page_pool.top - first;
}

/* After the system refused to extend the arena by all that was missing: it may still grant what is
 * missing behind the free pages at the arena's end. */
static hz_page_info *find_at_last(size_t pages, uint32_t node)
{
    hz_page_info *run = run_find(pages, node, DIRTY_TOO);
    if (run == NULL) run = find_anywhere(pages, node);
    const size_t at_end = run == NULL ? free_at_end() : 0;
    if (at_end == 0 || at_end >= pages || !pages_extend(pages - at_end)) return run;
    return find_anywhere(pages, node);
}

/* Extends the arena, only by what is missing if its last run is dirty and worth stretching. Another
 * thread may take what was added: then it tries again. */
static hz_page_info *find_more(size_t pages, uint32_t node, run_taste taste)
{
    hz_page_info *run = taste == MAY_STRETCH ? last_run(pages, node) : NULL;
    while (run == NULL || run->pages < pages) {
        const bool done = pages_extend(run != NULL ? pages - run->pages : pages);
        run = run != NULL && (run = last_run(pages, node)) != NULL ? run_stretch(run, pages) : NULL;
        if (run == NULL) run = done ? run_find(pages, node, taste) : find_at_last(pages, node);
        if (!done) break;
    }
    return run;
}

/* For a request of zeroes a long dirty run must be cleared. While more than max_dirty_bytes are
 * dirty, such a run goes back to the system anyway: then a clean one is better, unless the system
 * takes none back. */
static run_taste taste_for(size_t pages, size_t align, bool wants_zeroes)
{
    if (!wants_zeroes && align == 1 && pages >= STRETCH_PAGES) return MAY_STRETCH;
    const bool is_long = wants_zeroes && pages >= CLEAR_PAGES;
    return is_long && is_too_much_dirty() && !hz_page_pool.is_refused ? CLEAN_ONLY : DIRTY_TOO;
}

/* The first page from a run's first one on that is a multiple of `align`. */
static size_t align_up(const hz_page_info *run, size_t align)
{
    const size_t base_page = hz_map.base >> HZ_PAGE_SHIFT; /* alignment is of addresses */
    return ((base_page + hz_info_page(run) + align - 1) & ~(align - 1)) - base_page;
}

/* A free run of which `pages` pages can be used, aligned. */
static hz_page_info *find_usable(size_t pages, size_t align, uint32_t node, run_taste taste)
{
    hz_page_info *run = run_find(pages + align - 1, node, taste);
    if (run == NULL) run = find_more(pages + align - 1, node, taste);
    if (run == NULL || run->state != HZ_RUN_CLEAN) return run;
    if (hz_arena_reuse(align_up(run, align), pages)) return run;
    return find_anywhere(pages + align - 1, node);
}

hz_page_info *hz_pages_alloc(size_t pages, size_t align, uint32_t node, bool *zeroed)
{
    if (pages + align > UINT32_MAX) return NULL;
    hz_lock_take(&hz_page_pool.lock);
    hz_page_info *run = find_usable(pages, align, node, taste_for(pages, align, zeroed != NULL));
    if (run != NULL) {
        const bool is_clean = run->state == HZ_RUN_CLEAN;
        if (zeroed != NULL) *zeroed = is_clean;
        if (!is_clean) hz_count(HZ_STAT_pages_reused, 1);
        run = hz_run_split(run, align_up(run, align), pages);
        if (is_clean) run->node = (uint8_t)node;
        /* by one write, so that the child of a fork finds it free or in use */
        hz_plain_put(&run->state, (uint8_t)HZ_RUN_OUT);
    }
    hz_lock_release(&hz_page_pool.lock);
    return run;
}

void hz_pages_free(hz_page_info *run)
{
    const uint32_t now_ms = hz_os_now_ms();
    hz_lock_take(&hz_page_pool.lock);
    hz_run_list_dirty(hz_info_page(run), run->pages, run->node, now_ms);
    hz_lock_release(&hz_page_pool.lock);
}

void hz_pages_free_clean(hz_page_info *run)
{
    hz_lock_take(&hz_page_pool.lock);
    hz_run_list_clean(hz_info_page(run), run->pages);
    hz_lock_release(&hz_page_pool.lock);
}

/* ---- resizing ------------------------------------------------------------------------------- */

static bool run_grow(hz_page_info *run, size_t pages)
{
    size_t first = hz_info_page(run), end = first + run->pages;
    size_t more = pages - run->pages;
    hz_page_info *right = end < hz_page_pool.top ? &hz_map.infos[end] : NULL;
    if (!is_end_of(right, HZ_RUN_CLEAN, 0) && !is_end_of(right, HZ_RUN_DIRTY, run->node))
        return false;
    if (right->pages < more) return false;
    if (right->state == HZ_RUN_CLEAN && !hz_arena_reuse(end, more)) return false;
    hz_run_split(right, end, more);
    hz_run_resize(run, pages);
    return true;
}

static void run_shrink(hz_page_info *run, size_t pages)
{
    size_t first = hz_info_page(run), end = first + run->pages;
    hz_run_resize(run, pages);
    hz_run_list_dirty(first + pages, end - first - pages, run->node, hz_os_now_ms());
}

bool hz_pages_resize(hz_page_info *run, size_t pages)
{
    bool done = true;
    hz_lock_take(&hz_page_pool.lock);
    if (pages > run->pages)
        done = run_grow(run, pages);
    else if (pages < run->pages)
        run_shrink(run, pages);
    hz_lock_release(&hz_page_pool.lock);
    return done;
}

bool hz_pages_grow_at_last(hz_page_info *run, size_t pages)
{
    hz_lock_take(&hz_page_pool.lock);
    const size_t end = hz_info_page(run) + run->pages, more = pages - run->pages;
    const bool done = free_length(end, true) >= more && runs_take(end, more);
    if (done) hz_run_resize(run, pages);
    hz_lock_release(&hz_page_pool.lock);
    return done;
}
