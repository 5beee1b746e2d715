/*
 * Magazines: per thread and class, a stack of pointers to free blocks. An empty one is refilled
 * from the depot, a full one is flushed to it. A pop or push that finds it so is a shortage.
 *
 * A magazine grows with use (magazine_growth), while that is worth its memory (growth_rent), up to
 * its cap. All magazines of a thread stay within the thread's budget (budget.c). A magazine that
 * must grow takes bytes from those that need theirs less.
 *
 * Slots cost memory, too, and so does a lease: a page of the kernel that no other thread's blocks
 * lie on. So a magazine is made at the thread's first shortage of the class, behind those that were
 * made before, the first ones beside the heap; one that grows beyond FIRST_SLOTS moves to an array
 * of its own; and one gets a lease when the thread has taken as many bytes of the class. A long
 * block, of more than HZ_SMALL_MAX_BYTES, waits hollow if it is the first of its class that the
 * thread frees: a buffer that grows leaves one of each size behind, and most programs need none of
 * them again.
 */
#include "internal.h"
#include "os.h"

enum {
    FIRST_SLOTS = 8,
    NEAR_MAGAZINES = 12, /* lie beside the heap; most threads of a large pool use no more classes */
    LEASE_BYTES = 4096, /* what a lease makes resident at least */
    SELDOM_MS = 1000,   /* longer times between two shortages count as this */
    PAUSE = 4, /* a longer time between two shortages counts as this many times the mean */
    MUCH = 16, /* a magazine shrinks for another only if its rent is this many times higher */
    FLUSH_MOST = 256, /* blocks that a flush takes out at a time */
    LONG_STREAK = 8,  /* shortages of one kind in a row after which blocks go in one direction */
};

_Static_assert(HZ_PARAM_MOST(thread_cache_bytes) <= UINT64_MAX / MUCH >> HZ_WORD_BITS / 2,
               "a rent, and MUCH times a rent, fit 64 bits");
_Static_assert(HZ_PARAM_MOST(magazine_cap) <= UINT16_MAX, "a magazine counts its blocks");

static uint32_t cap_for(uint32_t class_)
{
    int64_t cap = hz_cfg.magazine_bytes / (int64_t)hz_class_bytes[class_];
    if (cap > hz_cfg.magazine_cap) cap = hz_cfg.magazine_cap;
    return (uint32_t)(cap > 1 ? cap : 1);
}

/* Slots of an array for so many blocks: one more before the first, for the pop from an empty
 * magazine, and one after the last, for the push to a full one. */
static size_t slots_for(uint32_t blocks)
{
    return blocks + 2;
}

/* Slots of the second arrays of the classes below `class_`. */
static size_t slots_below(uint32_t class_)
{
    size_t slots = 0;
    for (uint32_t below = 1; below < class_; below++)
        slots += cap_for(below) > FIRST_SLOTS ? slots_for(cap_for(below)) : 0;
    return slots;
}

/* Of a magazine with its first array. */
static size_t first_bytes(uint32_t class_)
{
    const uint32_t cap = cap_for(class_), first_cap = cap < FIRST_SLOTS ? cap : FIRST_SLOTS;
    return sizeof(hz_magazine_cold) + slots_for(first_cap) * sizeof(void *);
}

/* Before and behind the second arrays. As it is longer than any array, no thread that searches for
 * a block takes what lies between a first array and a second one for an array (blocks_of). */
#define GAP_BYTES (HZ_PARAM_MOST(magazine_cap) * sizeof(void *))

/* Of all magazines, and of a gap behind them. */
static size_t all_first_bytes(void)
{
    size_t bytes = GAP_BYTES;
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) bytes += first_bytes(class_);
    return bytes;
}

size_t hz_magazine_bytes(void)
{
    return all_first_bytes() + slots_below(HZ_CLASSES + 1) * sizeof(void *) + GAP_BYTES;
}

size_t hz_magazine_near_bytes(void)
{
    return NEAR_MAGAZINES * first_bytes(1);
}

void hz_magazine_make_all(hz_heap *heap, unsigned char *near, unsigned char *far)
{
    heap->fresh = near;
    heap->fresh_end = near + hz_magazine_near_bytes();
    heap->arrays = (void **)(void *)(far + all_first_bytes());
}

/* Where a magazine that the heap did not have yet is to be. */
static hz_magazine_cold *place_of(hz_heap *heap, uint32_t class_)
{
    if (heap->fresh + first_bytes(class_) > heap->fresh_end) {
        heap->fresh_end = (unsigned char *)heap->arrays;
        heap->fresh = heap->fresh_end - all_first_bytes();
    }
    heap->fresh += first_bytes(class_);
    return (hz_magazine_cold *)(void *)(heap->fresh - first_bytes(class_));
}

/* The magazine of a class, made at need. It stays where it is as long as the heap, but when the
 * heap was bare it is all zero (hz_magazine_forget_slots). */
static hz_magazine_cold *magazine_of(hz_heap *heap, uint32_t class_)
{
    hz_magazine_cold *magazine = heap->magazines[class_];
    if (HZ_LIKELY(magazine != NULL && magazine->cap > 0)) return magazine;
    if (magazine == NULL) magazine = place_of(heap, class_);
    magazine->blocks = (void **)(magazine + 1) + 1;
    magazine->cap = (uint16_t)cap_for(class_);
    hz_plain_put(&heap->magazines[class_], magazine);
    return magazine;
}

static uint32_t held(const hz_heap *heap, uint32_t class_)
{
    const hz_magazine_cold *magazine = heap->magazines[class_];
    if (magazine == NULL || magazine->grown == 0) return 0;
    return (uint32_t)(heap->home_row[class_].top - magazine->blocks);
}

/* Gives up to FLUSH_MOST of the `count` coldest blocks to the depot; returns how many. They leave
 * the array first: else a block that another thread takes from the depot would still seem to lie
 * here. */
static uint32_t flush_part(hz_heap *heap, uint32_t class_, uint32_t count)
{
    void *coldest[FLUSH_MOST], **blocks = heap->magazines[class_]->blocks;
    if (count > FLUSH_MOST) count = FLUSH_MOST;
    const uint32_t left = held(heap, class_) - count;
    memcpy(coldest, blocks, count * sizeof(void *));
    memmove(blocks, blocks + count, left * sizeof(void *));
    hz_plain_put(&heap->home_row[class_].top, blocks + left);
    hz_depot_give(heap->shard, class_, coldest, count);
    return count;
}

/* Gives the `count` coldest blocks to the depot. */
static void flush(hz_heap *heap, uint32_t class_, uint32_t count)
{
    hz_count(HZ_STAT_flushes, 1);
    hz_count(HZ_STAT_flush_blocks, count);
    while (count > 0) count -= flush_part(heap, class_, count);
}

/* ---- growth --------------------------------------------------------------------------------- */

/* Before, the magazine had the empty stack of hz_heap_none, so that an unused class costs no
 * memory. */
static void take_own_array(hz_heap *heap, uint32_t class_)
{
    void **blocks = heap->magazines[class_]->blocks;
    blocks[-1] = hz_heap_none.home_row[class_].top[-1];
    heap->home_row[class_].top = blocks;
}

/* Moves a magazine from its first array to its second one. A thread that reads one of the two with
 * the top of the other sees an empty magazine (blocks_of). */
static void take_second_array(hz_heap *heap, uint32_t class_)
{
    hz_magazine_cold *magazine = heap->magazines[class_];
    void **first = magazine->blocks, **second = heap->arrays + slots_below(class_) + 1;
    const uint32_t count = held(heap, class_);
    memcpy(second - 1, first - 1, slots_for(magazine->grown) * sizeof(void *));
    hz_plain_put(&magazine->blocks, second);
    hz_plain_put(&heap->home_row[class_].top, second + count);
}

/* What an empty slot holds, so that pushes find room there: any address. */
#define HZ_SLOT_OPEN ((void *)hz_map.base)

static void set_grown(hz_heap *heap, uint32_t class_, uint32_t grown)
{
    hz_magazine_cold *magazine = heap->magazines[class_];
    const size_t bytes = hz_class_bytes[class_];
    if (magazine->grown == 0) take_own_array(heap, class_);
    if (grown > FIRST_SLOTS && magazine->blocks == (void **)(magazine + 1) + 1)
        take_second_array(heap, class_);
    for (uint32_t i = magazine->grown; i < grown; i++) magazine->blocks[i] = HZ_SLOT_OPEN;
    magazine->blocks[grown] = NULL;
    hz_budget_charge(heap, magazine->grown * bytes, grown * bytes);
    magazine->grown = (uint16_t)grown;
}

static void shrink_to_half(hz_heap *heap, uint32_t class_)
{
    uint32_t grown = heap->magazines[class_]->grown / 2u;
    if (held(heap, class_) > grown) flush(heap, class_, held(heap, class_) - grown);
    set_grown(heap, class_, grown);
    hz_count(HZ_STAT_magazines_shrunk, 1);
}

/* The rent of a magazine, what it costs to put off one shortage: its bytes, times the mean time
 * between two shortages, for which it occupies them. */
static uint64_t rent(const hz_magazine_cold *magazine, uint32_t class_, uint64_t now_ticks)
{
    const uint32_t seldom = SELDOM_MS * hz_os_ticks_of_ms();
    uint64_t ticks = now_ticks - magazine->short_ticks;
    if (ticks < magazine->mean_ticks) ticks = magazine->mean_ticks;
    if (ticks > seldom) ticks = seldom; /* one without a recent shortage is worth little */
    return ticks * magazine->grown * hz_class_bytes[class_];
}

/* Whether the thread only allocates, or only frees: blocks pass through, and none is used twice. */
static bool is_one_way(const hz_magazine_cold *magazine)
{
    return magazine->streak >= LONG_STREAK;
}

/* Whether a magazine has room for this many batches, and more would be of no use, as blocks only
 * pass through it. */
static bool has_plenty(const hz_magazine_cold *magazine, uint32_t batches)
{
    int64_t batch = hz_cfg.refill_batch;
    if (batch < hz_cfg.flush_batch) batch = hz_cfg.flush_batch;
    return is_one_way(magazine) && magazine->grown >= batches * batch;
}

/* Shrinks magazines that have plenty or a much higher rent, until `bytes` more fit the thread's
 * budget; false when they do not. A magazine with a similar rent would soon take the bytes back. */
static bool make_others_smaller(hz_heap *heap, uint32_t class_, size_t bytes)
{
    const hz_magazine_cold *asking = heap->magazines[class_];
    const size_t budget = hz_budget_of(heap);
    if (heap->grown_bytes + bytes <= budget) return true;
    if (bytes > budget || has_plenty(asking, 1)) return false;
    const uint64_t now_ticks = asking->short_ticks;
    const uint64_t much = MUCH * rent(asking, class_, now_ticks);
    for (uint32_t i = 0; i < HZ_CLASSES && heap->grown_bytes + bytes > budget; i++) {
        uint32_t other = heap->steal_from = heap->steal_from % HZ_CLASSES + 1;
        const hz_magazine_cold *magazine = heap->magazines[other];
        if (magazine == NULL || magazine->grown == 0) continue;
        if (has_plenty(magazine, 2) || rent(magazine, other, now_ticks) > much)
            shrink_to_half(heap, other);
    }
    return heap->grown_bytes + bytes <= budget;
}

static uint32_t doubled(const hz_magazine_cold *magazine)
{
    return magazine->grown > 0 ? 2u * magazine->grown : (uint32_t)(hz_cfg.refill_batch + 7) / 8;
}

static uint32_t next_size(const hz_magazine_cold *magazine)
{
    if (hz_cfg.magazine_growth == HZ_MAGAZINE_GROWTH_FULL) return magazine->cap;
    if (hz_cfg.magazine_growth == HZ_MAGAZINE_GROWTH_DOUBLE) return doubled(magazine);
    return magazine->grown + (uint32_t)hz_cfg.refill_batch;
}

/* Notes a shortage. Growth goes by the mean time between two: single times scatter so much that one
 * would be short enough sooner or later. A long pause hardly changes the mean. */
static void note_shortage(hz_magazine_cold *magazine, bool is_full, uint64_t now_ticks)
{
    const uint32_t seldom = SELDOM_MS * hz_os_ticks_of_ms();
    const uint64_t mean = magazine->mean_ticks;
    if (is_full != magazine->was_full) magazine->streak = 0;
    if (magazine->streak < UINT8_MAX) magazine->streak++;
    magazine->was_full = is_full;
    uint64_t since = magazine->grown > 0 ? now_ticks - magazine->short_ticks : 0;
    if (since > seldom) since = seldom;
    if (mean > 0 && since > PAUSE * mean) since = PAUSE * mean;
    magazine->short_ticks = now_ticks;
    magazine->mean_ticks = (uint32_t)(mean > 0 ? (7 * mean + since) / 8 : since);
}

/* Whether a larger magazine is worth its memory. With twice the size it has half as many shortages
 * at best. The gain is larger, the shorter the time between two shortages is; the cost is larger,
 * the more bytes it may hold. growth_rent is the highest rent at which a magazine still grows. */
static bool is_worth_more(const hz_magazine_cold *magazine, uint32_t class_)
{
    const uint64_t bytes = (uint64_t)magazine->grown * hz_class_bytes[class_];
    return magazine->mean_ticks * bytes <=
           (uint64_t)hz_live(growth_rent) * 1024 * hz_os_ticks_of_ms();
}

static bool magazine_grow_to(hz_heap *heap, uint32_t class_, uint32_t grown)
{
    const hz_magazine_cold *magazine = heap->magazines[class_];
    if (grown > magazine->cap) grown = magazine->cap;
    if (grown <= magazine->grown) return false;
    size_t bytes = (size_t)(grown - magazine->grown) * hz_class_bytes[class_];
    if (!make_others_smaller(heap, class_, bytes)) return false;
    set_grown(heap, class_, grown);
    hz_count(HZ_STAT_magazines_grown, 1);
    return true;
}

/* Whether a thread takes so much of a class that it may have a lease of it for longer than it takes
 * to cut what it needs at once. */
static bool is_worth_lease(const hz_magazine_cold *magazine, uint32_t class_)
{
    return magazine->taken * (size_t)hz_class_bytes[class_] >= LEASE_BYTES;
}

/* Whether a thread has taken fewer blocks than a short magazine has room for: it may need no more. */
static bool is_untried(const hz_magazine_cold *magazine, uint32_t class_)
{
    return magazine->grown <= FIRST_SLOTS && magazine->taken < magazine->grown &&
           !is_worth_lease(magazine, class_);
}

/* If the size that the policy wants exceeds the thread's budget, twice the present one may fit. */
static bool magazine_grow(hz_heap *heap, uint32_t class_, bool is_full)
{
    hz_magazine_cold *magazine = heap->magazines[class_];
    const uint64_t now_ticks = hz_os_ticks();
    hz_budget_note(heap, now_ticks);
    note_shortage(magazine, is_full, now_ticks);
    if (!is_worth_more(magazine, class_) || (!is_full && is_untried(magazine, class_))) return false;
    const uint32_t wanted = next_size(magazine), twice = doubled(magazine);
    return magazine_grow_to(heap, class_, wanted) ||
           (twice < wanted && magazine_grow_to(heap, class_, twice));
}

/* ---- the slow paths ------------------------------------------------------------------------- */

/* How many blocks a refill takes. The first one takes no more than fill cache lines: most threads
 * of a large pool use few blocks, and no line should be of two of them. Later at most half of the
 * magazine is filled: the other half is for blocks that the thread will free. A thread that only
 * allocates fills it all; at once if it gave as many before, as it does where long runs of frees
 * follow long runs of allocations; else a batch at a time, so that threads that never free hoard
 * nothing. */
static uint32_t to_take(const hz_magazine_cold *magazine, uint32_t class_)
{
    const uint32_t grown = magazine->grown;
    const uint32_t whole = hz_class_bytes[class_] & -hz_class_bytes[class_];
    uint32_t batch = (uint32_t)hz_cfg.refill_batch;
    if (magazine->taken == 0 && grown <= FIRST_SLOTS)
        batch = (HZ_CACHE_LINE_BYTES + whole - 1) / whole;
    const bool at_once = is_one_way(magazine) && magazine->given >= grown;
    uint32_t want = is_one_way(magazine) ? grown : grown / 2;
    if (!at_once && batch < want) want = batch;
    return want > 0 ? want : 1;
}

/* How many blocks a flush gives up: a batch, and no more than half if the thread will soon
 * allocate. */
static uint32_t to_give(const hz_magazine_cold *magazine, uint32_t count)
{
    const uint32_t batch = (uint32_t)hz_cfg.flush_batch;
    if (!is_one_way(magazine)) count = (count + 1) / 2;
    return count < batch ? count : batch;
}

/* Refills an empty magazine and pops a block; NULL when there is no memory. */
static void *refill(hz_heap *heap, uint32_t class_)
{
    hz_magazine_cold *magazine = magazine_of(heap, class_);
    hz_count(HZ_STAT_refills, 1);
    hz_tick(heap);
    magazine_grow(heap, class_, false);
    if (hz_cfg.remote_grouping == HZ_REMOTE_GROUPING_SHARD) hz_remote_drain_inbox(heap);
    const uint32_t want = to_take(magazine, class_);
    void *only, **blocks = magazine->grown > 0 ? magazine->blocks : &only;
    size_t got = hz_depot_take(heap->shard, class_, blocks, want, &magazine->lease);
    if (!is_worth_lease(magazine, class_)) {
        hz_span_end_lease(heap->shard, class_, &magazine->lease);
        magazine->taken = (uint16_t)(magazine->taken + got);
    }
    if (got == 0) return NULL;
    hz_count(HZ_STAT_refill_blocks, got);
    magazine->given -= got < magazine->given ? (uint32_t)got : magazine->given;
    if (magazine->grown > 0) hz_plain_put(&heap->home_row[class_].top, blocks + got - 1);
    return blocks[got - 1];
}

HZ_SLOW void *hz_magazine_pop(hz_heap *heap, uint32_t class_)
{
    if (held(heap, class_) == 0) return refill(heap, class_);
    return *--heap->home_row[class_].top; /* the heap was adopted with its blocks */
}

void hz_magazine_shuffle(hz_heap *heap, uint32_t class_, uint64_t random)
{
    const uint32_t count = held(heap, class_);
    if (count < 2) return;
    void **blocks = heap->magazines[class_]->blocks, **last = heap->home_row[class_].top - 1;
    void *block = blocks[random % count];
    blocks[random % count] = *last;
    *last = block;
}

static void push_to_full(hz_heap *heap, uint32_t class_, void *block)
{
    hz_magazine_cold *magazine = magazine_of(heap, class_);
    if (!magazine_grow(heap, class_, true)) {
        const uint32_t count = to_give(magazine, held(heap, class_));
        magazine->given += count < UINT32_MAX - magazine->given ? count : 0;
        if (count == 0) {
            hz_depot_give(heap->shard, class_, &block, 1);
            return;
        }
        flush(heap, class_, count);
    }
    void **top = heap->home_row[class_].top;
    *top = block;
    hz_plain_put(&heap->home_row[class_].top, top + 1);
}

HZ_SLOW void hz_magazine_make_room(hz_heap *heap, uint32_t class_, void *block)
{
    push_to_full(heap, class_, block);
    hz_tick_of_free(heap);
}

/* The slots of a magazine, which may be another thread's. Those below `top` hold free blocks. That
 * holds even while the other thread changes the magazine: it writes a slot before it raises `top`
 * above it, and a live block was popped before. */
__attribute__((no_sanitize("thread"))) static void blocks_of(const hz_heap *heap, uint32_t class_,
                                                             void *const **first, void *const **end)
{
    const hz_magazine_cold *magazine = hz_plain_get(&heap->magazines[class_]);
    *first = *end = NULL;
    if (magazine == NULL) return;
    *end = (void *const *)hz_plain_get(&heap->home_row[class_].top);
    *first = (void *const *)hz_plain_get(&magazine->blocks);
    if (*end < *first || *end > *first + magazine->cap) *end = *first;
}

__attribute__((no_sanitize("thread"))) bool hz_magazine_holds(const hz_heap *heap, uint32_t class_,
                                                              const void *block)
{
    void *const *blocks, *const *end;
    for (blocks_of(heap, class_, &blocks, &end); blocks < end; blocks++) {
        if (hz_plain_get(blocks) == block) return true;
    }
    return false;
}

__attribute__((no_sanitize("thread"))) uint32_t hz_magazine_count(const hz_heap *heap,
                                                                  uint32_t class_)
{
    void *const *blocks, *const *end;
    blocks_of(heap, class_, &blocks, &end);
    return (uint32_t)(end - blocks);
}

/* Purges the whole pages of the kernel among `bytes`; returns how many bytes these are, 0 where
 * the system refuses. */
static size_t purge_within(void *from, size_t bytes)
{
    const size_t page = hz_os_page_bytes();
    const uintptr_t start = ((uintptr_t)from + page - 1) & -page;
    const uintptr_t end = ((uintptr_t)from + bytes) & -page;
    return start < end && hz_os_purge((void *)start, end - start) ? end - start : 0;
}

/* Keeps what shares a page of the kernel with the seal or with a neighbour. A system call, and page
 * faults when the block is used again: so only for the first block of its class that the thread
 * frees. */
void hz_magazine_hollow(hz_heap *heap, uint32_t class_, void *block)
{
    if (heap == &hz_heap_none || hz_cfg.thp == HZ_THP_ON) return;
    hz_magazine_cold *magazine = magazine_of(heap, class_);
    if (magazine->has_freed) return;
    magazine->has_freed = true;
    const size_t hollow = purge_within((char *)block + HZ_GRANULE_BYTES, /* keeps errno: free.c */
                                       hz_class_bytes[class_] - HZ_GRANULE_BYTES);
    hz_count(HZ_STAT_hollowed_bytes, hollow);
}

void hz_magazine_flush_all(hz_heap *heap)
{
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        if (heap->magazines[class_] == NULL) continue;
        if (held(heap, class_) > 0) flush(heap, class_, held(heap, class_));
        hz_span_end_lease(heap->shard, class_, &heap->magazines[class_]->lease);
    }
}

void hz_magazine_forget_slots(hz_heap *heap)
{
    unsigned char *const first = (unsigned char *)heap->arrays - all_first_bytes();
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        hz_plain_put(&heap->home_row[class_].top, hz_heap_none.home_row[class_].top);
        if (heap->magazines[class_] != NULL) heap->magazines[class_]->grown = 0;
    }
    heap->grown_bytes = heap->charged_bytes = 0;
    (void)purge_within(first, hz_magazine_bytes());
}
