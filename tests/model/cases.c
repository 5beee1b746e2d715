/*
 * The cases: what two or three threads do at once, a few calls each, and what must hold in every
 * order of their accesses.
 *
 * A thread that has a block writes to it. So if a block ever had two owners, or went from one to
 * the next without an order between what they write, that is a data race, and the engine reports
 * it.
 */
#include "model.h"

#include <hz/hz.h>

#include <stdatomic.h>

#include "internal.h"

enum { BYTES = 64, BATCH = 4 };

static uint32_t the_class(void)
{
    return hz_class_of(BYTES);
}

static void *use(void *block)
{
    model_require(block != NULL);
    *(uint64_t *)block += 1;
    return block;
}

static void *take(void)
{
    return use(hz_malloc(BYTES));
}

static void give(void *block)
{
    hz_free(use(block));
}

/* ---- blocks that go from thread to thread ---------------------------------------------------- */

static void *_Atomic parcels[3];

static void send(unsigned to, void *block)
{
    atomic_store_explicit(&parcels[to], block, memory_order_release);
}

static void *receive(unsigned me)
{
    void *block;
    while ((block = atomic_load_explicit(&parcels[me], memory_order_acquire)) == NULL) model_wait();
    return block;
}

/* ---- remote: a thread of one shard frees what a thread of another one has allocated -----------
 */

static void each_has_a_heap(void)
{
    for (unsigned t = 0; t < 2; t++) {
        model_become(t);
        give(take());
    }
}

/* As a refill does it: what was handed over goes into the depot, and blocks come from there. */
static void take_what_came_back(void)
{
    void *blocks[2];
    hz_remote_drain_inbox(hz_heap_mine);
    const size_t got = hz_depot_take(hz_heap_mine->shard, the_class(), blocks, 2, NULL);
    for (size_t i = 0; i < got; i++) give(blocks[i]);
}

static void remote(unsigned me)
{
    if (me == 0) {
        send(1, take());
        take_what_came_back();
        take_what_came_back();
    } else {
        give(receive(1));
        hz_remote_flush(hz_heap_mine);
    }
}

/* Two threads hand over to a third at once. */
static void three_have_a_heap(void)
{
    void *blocks[2];
    for (unsigned t = 0; t < 3; t++) {
        model_become(t);
        give(take());
    }
    model_become(0);
    for (unsigned t = 1; t < 3; t++) blocks[t - 1] = take();
    for (unsigned t = 1; t < 3; t++) send(t, blocks[t - 1]);
}

static void remote_from_two(unsigned me)
{
    if (me == 0) {
        take_what_came_back();
        take_what_came_back();
    } else if (hz_heap_mine->shard != 0) {
        give(receive(me));
        hz_remote_flush(hz_heap_mine);
    } else {
        give(receive(me));
        take_what_came_back();
    }
}

/* ---- depot: batches on the stack, whatever the policy -----------------------------------------
 */

static void give_one(void *block)
{
    if (block == NULL) return;
    hz_seal(use(block), hz_map.keys[the_class()]);
    hz_depot_give(0, the_class(), &block, 1);
}

static void two_batches(void)
{
    void *blocks[2];
    model_become(0);
    for (unsigned i = 0; i < 2; i++) blocks[i] = take();
    for (unsigned i = 0; i < 2; i++) give_one(blocks[i]);
}

static void *take_one(void)
{
    void *block;
    const size_t got = hz_depot_take(0, the_class(), &block, 1, NULL);
    return got == 1 ? use(block) : NULL;
}

/* One takes once; the other takes both, and the one that was on top comes back on top. */
static void depot(unsigned me)
{
    void *first = take_one();
    if (me == 0) {
        give_one(first);
        return;
    }
    void *second = take_one();
    give_one(first);
    if (second != NULL) use(second);
}

/*
 * A batch is on top again, and another one lies below it: while the first thread is about to take
 * the batch on top, the second takes both, and the third gives its block in the first of them while
 * the second one is still on its way.
 */
static void *spare;

static void two_batches_and_a_spare(void)
{
    model_become(0);
    spare = take(); /* first, as a refill would take from the depot */
    two_batches();
}

static void depot_returned(unsigned me)
{
    if (me == 2) {
        give_one(spare);
        return;
    }
    take_one();
    take_one();
}

/* The first use of a depot, by two threads at once. */
static void depot_first(unsigned me)
{
    void *block = hz_span_take(0, the_class(), &block, 1, NULL) == 1 ? block : NULL;
    give_one(block);
    void *again = take_one();
    (void)me;
    if (again != NULL) use(again);
}

static void depot_and_decay(unsigned me)
{
    if (me == 1) {
        (void)hz_depot_decay(0, the_class());
        (void)hz_depot_decay(0, the_class());
        return;
    }
    void *first = take_one();
    give_one(first);
    use(take_one());
}

/* ---- spans: the bin of a class ----------------------------------------------------------------
 */

static void span(unsigned me)
{
    void *blocks[2];
    const size_t got = hz_span_take(0, the_class(), blocks, 2, NULL);
    for (size_t i = 0; i < got; i++) use(blocks[i]);
    hz_span_give(0, the_class(), blocks, got);
    if (me == 0) (void)hz_span_trim(0, the_class());
}

/* A block that was sent before the cut of the next one is freed during it. */
static void cut_beside_free(unsigned me)
{
    if (me == 0) {
        hz_lease lease = {NULL, 0};
        void *block;
        (void)hz_span_take(0, the_class(), &block, 1, &lease);
        for (unsigned i = 0; i < 2; i++) {
            if (hz_span_cut(&lease, the_class(), &block, 1) != 1) return;
            hz_unseal(block);
            if (i == 0) send(1, use(block));
        }
        use(block);
    } else {
        give(receive(1));
        give(take());
    }
}

/* ---- the entry of a page ----------------------------------------------------------------------
 */

/*
 * The page of a span that dies is cut anew into another class, while a reader asks it for the block
 * at the start of the next page. `origin` is worked out from the remainder that the reader saw.
 */
enum { OLD_CLASS = 4, NEW_CLASS = 7 };
static hz_page_entry *entry_of_other;
static unsigned char *next_start;

static void *block_below(uint32_t class_)
{
    return next_start - 4 * hz_class_bytes[class_];
}

static void page_is_cut(void)
{
    model_become(0);
    next_start = (unsigned char *)hz_page_address(hz_page_of(hz_malloc(BYTES)) + 1);
    entry_of_other = hz_entry_at(next_start - HZ_GRANULE_BYTES);
    hz_entry_set(entry_of_other, hz_class_step(OLD_CLASS, 0), block_below(OLD_CLASS));
}

static void page_is_cut_anew(void)
{
    hz_entry_clear(entry_of_other);
    hz_entry_set(entry_of_other, hz_class_step(NEW_CLASS, 0), block_below(NEW_CLASS));
}

static uint64_t origin_of(uint32_t class_)
{
    return -((uintptr_t)block_below(class_) * hz_class_step(class_, 0));
}

/* What a reader sees beside the step of a class. */
static void page_is_read(unsigned me, uint32_t class_)
{
    if (me == 0) {
        page_is_cut_anew();
        return;
    }
    const uint64_t step = hz_atomic_peek(&entry_of_other->step);
    const uint64_t remainder = hz_remainder(entry_of_other, step, next_start);
    if (step != hz_class_step(class_, 0)) return;
    model_require(remainder - (uintptr_t)next_start * step == origin_of(class_));
}

/* A reader that sees the new step sees the new origin. */
static void page_new_step(unsigned me)
{
    page_is_read(me, NEW_CLASS);
}

/* A reader that sees the old step may see either origin: the entry does not exclude that. */
static void page_old_step(unsigned me)
{
    page_is_read(me, OLD_CLASS);
}

/* ---- threads that come and go -----------------------------------------------------------------
 */

static void first_has_a_heap(void)
{
    model_become(0);
    give(take());
}

/* The one ends while the other, which has no heap yet, frees its block, and so may adopt its heap.
 */
static void exit_beside_free(unsigned me)
{
    if (me == 0) {
        send(1, take());
        give(take());
        model_thread_ends();
    } else {
        give(receive(1));
        give(take());
    }
}

static void exit_beside_cooling(unsigned me)
{
    if (me == 0) {
        give(take());
        model_thread_ends();
    } else {
        hz_trim_shared();
        give(take());
    }
}

/* A heap is born while another thread walks the list of all heaps. */
static void birth(unsigned me)
{
    if (me == 0) {
        give(take());
        return;
    }
    for (const hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next) {
        model_require(heap->rows != NULL && heap->arrays != NULL);
        model_require(heap->shard < hz_map.shards);
    }
}

/* The table of parameters is made when it is first asked for, by any thread, of the same bytes. */
static void table_is_made(void)
{
    (void)hz_param_at(0);
}

static void cold_start(unsigned me)
{
    model_require(hz_start());
    void *block = take();
    if (me == 0) give(block);
}

/* As before the library's constructor: malloc reads limits that the start writes. */
static void cold_malloc(unsigned me)
{
    (void)me;
    take();
}

/* ---- fork -------------------------------------------------------------------------------------
 */

static void in_child(void)
{
    void *blocks[2 * BATCH];
    for (unsigned i = 0; i < 2 * BATCH; i++) blocks[i] = take();
    for (unsigned i = 0; i < 2 * BATCH; i++) give(blocks[i]);
    void *large = use(hz_malloc(HZ_CLASS_MAX_BYTES + 1));
    hz_free(large);
    hz_trim_shared();
}

static void fork_beside_depot(unsigned me)
{
    if (me == 0) {
        model_fork(in_child);
        give(take());
    } else {
        void *first = take_one();
        give_one(first);
        void *large = use(hz_malloc(HZ_CLASS_MAX_BYTES + 1));
        hz_free(large);
    }
}

/* ---- locks ------------------------------------------------------------------------------------
 */

static hz_lock the_lock;
static uint64_t guarded;

static void lock(unsigned me)
{
    for (unsigned i = 0; i < (me == 0 ? 2 : 1); i++) {
        hz_lock_take(&the_lock);
        guarded++;
        hz_lock_release(&the_lock);
    }
}

static void all_were_inside(void)
{
    model_require(guarded == 4);
    model_require(the_lock.word == 0);
}

static void spinlock(unsigned me)
{
    (void)me;
    if (!hz_lock_try(&the_lock)) hz_lock_wait_spinning(&the_lock);
    guarded += 2;
    hz_lock_release(&the_lock);
}

/* ---- large blocks and what is returned to the system ------------------------------------------
 */

static void large(unsigned me)
{
    void *block = use(hz_malloc(HZ_CLASS_MAX_BYTES + 1));
    hz_free(block);
    if (me == 0)
        (void)hz_trim();
    else
        use(hz_malloc(HZ_CLASS_MAX_BYTES + 1));
}

/* ---- all of them ------------------------------------------------------------------------------
 */

#define SMALL "HZ_REFILL_BATCH=4", "HZ_FLUSH_BATCH=4", "HZ_MAGAZINE_CAP=8", "HZ_SHARDS=1"
#define DEPOT(policy) SMALL, "HZ_DEPOT_SLOTS=2", "HZ_DEPOT_LOCK=" policy
#define REMOTE(grouping, policy)                                                                   \
    "HZ_SHARDS=2", "HZ_REMOTE_GROUPING=" grouping, "HZ_DEPOT_LOCK=" policy, "HZ_FLUSH_BATCH=4"

const model_case model_cases[] = {
    {"remote_none", 2, {REMOTE("none", "mutex")}, each_has_a_heap, remote},
    {"remote_shard", 2, {REMOTE("shard", "mutex")}, each_has_a_heap, remote},
    {"remote_shard_class", 2, {REMOTE("shard_class", "mutex")}, each_has_a_heap, remote},
    {"remote_spin", 2, {REMOTE("shard", "spin")}, each_has_a_heap, remote},
    {"remote_lockfree", 2, {REMOTE("shard_class", "lockfree")}, each_has_a_heap, remote},
    {"remote_from_two", 3, {REMOTE("shard", "mutex")}, three_have_a_heap, remote_from_two},
    {"depot_mutex", 2, {DEPOT("mutex")}, two_batches, depot},
    {"depot_spin", 2, {DEPOT("spin")}, two_batches, depot},
    {"depot_lockfree", 2, {DEPOT("lockfree")}, two_batches, depot},
    {"depot_lockfree_three", 3, {DEPOT("lockfree")}, two_batches, depot},
    {"depot_returned", 3, {DEPOT("lockfree")}, two_batches_and_a_spare, depot_returned},
    {"depot_first_lockfree", 2, {DEPOT("lockfree")}, first_has_a_heap, depot_first},
    {"depot_first_mutex", 2, {DEPOT("mutex")}, first_has_a_heap, depot_first},
    {"depot_decay_lockfree", 2, {DEPOT("lockfree")}, two_batches, depot_and_decay},
    {"depot_decay_mutex", 2, {DEPOT("mutex")}, two_batches, depot_and_decay},
    {"span", 2, {SMALL, "HZ_SPAN_CACHE=1"}, first_has_a_heap, span},
    {"span_three", 3, {SMALL, "HZ_SPAN_CACHE=0"}, first_has_a_heap, span},
    {"cut_beside_free", 2, {SMALL}, each_has_a_heap, cut_beside_free},
    {"page_new_step", 2, {SMALL}, page_is_cut, page_new_step},
    {"page_old_step", 2, {SMALL}, page_is_cut, page_old_step},
    {"exit_beside_free", 2, {SMALL}, first_has_a_heap, exit_beside_free},
    {"exit_beside_free_shards", 2, {"HZ_SHARDS=2"}, first_has_a_heap, exit_beside_free},
    {"exit_beside_cooling", 2, {SMALL}, first_has_a_heap, exit_beside_cooling},
    {"birth", 2, {"HZ_SHARDS=2"}, NULL, birth},
    {"cold_start", 2, {SMALL}, table_is_made, cold_start, NULL, true},
    {"cold_malloc", 2, {SMALL}, NULL, cold_malloc, NULL, true},
    {"fork_mutex", 2, {DEPOT("mutex")}, two_batches, fork_beside_depot},
    {"fork_lockfree", 2, {DEPOT("lockfree")}, two_batches, fork_beside_depot},
    {"lock", 3, {SMALL}, NULL, lock, all_were_inside},
    {"spinlock", 2, {SMALL}, NULL, spinlock},
    {"large", 2, {SMALL}, first_has_a_heap, large},
};

const size_t model_case_count = sizeof model_cases / sizeof model_cases[0];
