/*
 * Depots: free blocks of one class that the threads of a shard pass to each other, a batch at a
 * time.
 *
 * Under the policies `mutex` and `spin` a depot is an array of pointers under a lock that is held
 * while one batch is copied. Under `lockfree` it is a stack of batches. Its head has a generation
 * number, so that a thread notices if the head was popped and pushed again meanwhile. Batches are
 * never unmapped, so a thread may read one that is no longer in the stack.
 */
#include "internal.h"

enum { DEPOT_BYTES = 4 << 20 }; /* most that a depot keeps; it bounds the classes of long blocks */
_Static_assert(HZ_PARAM_MOST(depot_slots) * HZ_PARAM_MOST(flush_batch) <= UINT32_MAX,
               "a depot's capacity fits 32 bits");

static uint32_t capacity_for(uint32_t class_)
{
    int64_t blocks = hz_cfg.depot_slots * hz_cfg.flush_batch;
    int64_t fitting = DEPOT_BYTES / (int64_t)hz_class_bytes[class_];
    if (blocks > fitting) blocks = fitting;
    return (uint32_t)(blocks > 1 ? blocks : 1);
}

static void depot_lock(hz_depot *depot)
{
    if (HZ_LIKELY(hz_lock_try(&depot->lock))) return;
    if (hz_cfg.depot_lock == HZ_DEPOT_LOCK_SPIN)
        hz_lock_wait_spinning(&depot->lock);
    else
        hz_lock_wait(&depot->lock);
}

/* ---- under a lock --------------------------------------------------------------------------- */

/* Without the lock, as the system may have to be asked for memory. If two threads make an array at
 * the same time, one of the two stays unused and untouched. */
static bool stack_make(hz_depot *depot, uint32_t class_)
{
    const uint32_t capacity = capacity_for(class_);
    void **blocks = hz_meta_alloc(capacity * sizeof(void *));
    if (blocks == NULL) return false;
    depot_lock(depot);
    if (hz_atomic_peek(&depot->capacity) == 0) {
        depot->blocks = blocks;
        hz_atomic_put(&depot->capacity, capacity); /* after the array */
    }
    hz_lock_release(&depot->lock);
    return true;
}

static size_t stack_take(hz_depot *depot, void **out, size_t want)
{
    if (hz_atomic_peek(&depot->count) == 0)
        return 0; /* read without the lock; where it is out of date, the spans are asked instead */
    depot_lock(depot);
    uint32_t count = hz_atomic_peek(&depot->count);
    const uint32_t got = want < count ? (uint32_t)want : count;
    count -= got;
    hz_atomic_poke(&depot->count, count);
    memcpy(out, depot->blocks + count, got * sizeof(void *));
    hz_lock_release(&depot->lock);
    return got;
}

static size_t stack_give(hz_depot *depot, uint32_t class_, void *const *blocks, size_t count)
{
    if (HZ_UNLIKELY(hz_atomic_peek(&depot->capacity) == 0) && !stack_make(depot, class_)) return 0;
    depot_lock(depot);
    const uint32_t held = hz_atomic_peek(&depot->count);
    const size_t room = hz_atomic_peek(&depot->capacity) - held;
    if (count > room) count = room;
    memcpy(depot->blocks + held, blocks, count * sizeof(void *));
    hz_atomic_put(&depot->count, held + (uint32_t)count); /* after the blocks */
    hz_lock_release(&depot->lock);
    return count;
}

/* ---- without a lock ------------------------------------------------------------------------- */

static size_t batch_bytes(void)
{
    return sizeof(hz_batch) + (size_t)hz_cfg.flush_batch * sizeof(void *);
}

static hz_batch *batch_at(const hz_depot *depot, uint32_t number)
{
    return (hz_batch *)(void *)(depot->batches + (number - 1) * batch_bytes());
}

/* Pops a batch; returns its number, 0 when the stack is empty. */
static uint32_t batch_pop(const hz_depot *depot, _Atomic uint64_t *stack)
{
    uint64_t head = hz_atomic_get(stack);
    while ((uint32_t)head != 0) {
        uint64_t below = hz_atomic_peek(&batch_at(depot, (uint32_t)head)->next);
        uint64_t after = ((head >> 32) + 1) << 32 | below;
        if (hz_atomic_replace(stack, &head, after)) return (uint32_t)head;
        hz_count(HZ_STAT_lockfree_retries, 1);
    }
    return 0;
}

static void batch_push(const hz_depot *depot, _Atomic uint64_t *stack, uint32_t number)
{
    uint64_t head = hz_atomic_get(stack);
    for (;;) {
        hz_atomic_poke(&batch_at(depot, number)->next, (uint32_t)head);
        if (hz_atomic_replace(stack, &head, ((head >> 32) + 1) << 32 | number)) return;
        hz_count(HZ_STAT_lockfree_retries, 1);
    }
}

/* Called with depot->lock held. A reader looks at the capacity first, and it is written last. */
static void batches_make(hz_depot *depot, uint32_t class_)
{
    uint32_t batches = capacity_for(class_) / (uint32_t)hz_cfg.flush_batch;
    if (batches == 0) batches = 1;
    depot->batches = hz_meta_alloc(batches * batch_bytes());
    if (depot->batches == NULL) return;
    hz_atomic_poke(&depot->empty, 0); /* a thread that a fork has lost may have made some */
    for (uint32_t number = 1; number <= batches; number++) batch_push(depot, &depot->empty, number);
    hz_atomic_put(&depot->capacity, batches * (uint32_t)hz_cfg.flush_batch);
}

static bool batches_ready(hz_depot *depot, uint32_t class_)
{
    if (HZ_LIKELY(hz_atomic_get(&depot->capacity) != 0)) return true;
    hz_lock_take(&depot->lock);
    if (hz_atomic_get(&depot->capacity) == 0) batches_make(depot, class_);
    hz_lock_release(&depot->lock);
    return hz_atomic_get(&depot->capacity) != 0;
}

static size_t batches_take(hz_depot *depot, void **out, size_t want)
{
    if (hz_atomic_get(&depot->capacity) == 0) return 0;
    uint32_t number = batch_pop(depot, &depot->full);
    if (number == 0) return 0;
    hz_batch *batch = batch_at(depot, number);
    size_t got = want < batch->count ? want : batch->count;
    batch->count -= (uint32_t)got;
    memcpy(out, batch->blocks + batch->count, got * sizeof(void *));
    hz_atomic_add(&depot->count, -(uint32_t)got);
    batch_push(depot, batch->count > 0 ? &depot->full : &depot->empty, number);
    return got;
}

static size_t batches_give(hz_depot *depot, uint32_t class_, void *const *blocks, size_t count)
{
    size_t given = 0;
    if (!batches_ready(depot, class_)) return 0;
    while (given < count) {
        uint32_t number = batch_pop(depot, &depot->empty);
        if (number == 0) break;
        hz_batch *batch = batch_at(depot, number);
        size_t part = count - given;
        if (part > (size_t)hz_cfg.flush_batch) part = (size_t)hz_cfg.flush_batch;
        memcpy(batch->blocks, blocks + given, part * sizeof(void *));
        batch->count = (uint32_t)part;
        hz_atomic_add(&depot->count, (uint32_t)part);
        batch_push(depot, &depot->full, number);
        given += part;
    }
    return given;
}

/* ---- the policies behind one interface ------------------------------------------------------- */

static size_t depot_pop(hz_depot *depot, void **out, size_t want)
{
    if (hz_cfg.depot_lock == HZ_DEPOT_LOCK_LOCKFREE) return batches_take(depot, out, want);
    return stack_take(depot, out, want);
}

static size_t depot_push(hz_depot *depot, uint32_t class_, void *const *blocks, size_t count)
{
    if (hz_cfg.depot_lock == HZ_DEPOT_LOCK_LOCKFREE)
        return batches_give(depot, class_, blocks, count);
    return stack_give(depot, class_, blocks, count);
}

size_t hz_depot_take(uint32_t shard, uint32_t class_, void **out, size_t want, hz_lease *lease)
{
    hz_depot *depot = &hz_shards[shard].depots[class_];
    size_t got = depot_pop(depot, out, want);
    const uint32_t left = got > 0 ? hz_atomic_peek(&depot->count) : 0;
    if (left < hz_atomic_peek(&depot->least)) hz_atomic_poke(&depot->least, left);
    if (got > 0) {
        hz_count(HZ_STAT_depot_hits, 1);
        return got;
    }
    hz_count(HZ_STAT_depot_misses, 1);
    hz_atomic_poke(&depot->misses, 1);
    got = hz_span_take(shard, class_, out, want, lease);
    return got > 0 || lease == NULL ? got : hz_span_cut(lease, class_, out, want);
}

void hz_depot_give(uint32_t shard, uint32_t class_, void *const *blocks, size_t count)
{
    size_t given = depot_push(&hz_shards[shard].depots[class_], class_, blocks, count);
    if (given == count) return;
    hz_count(HZ_STAT_depot_overflows, 1);
    hz_span_give(shard, class_, blocks + given, count - given);
}

size_t hz_depot_top_up(uint32_t shard, uint32_t class_)
{
    enum { MOST = 256 };
    _Static_assert(HZ_PARAM_MOST(refill_batch) <= MOST, "a batch fits the array");
    void *blocks[MOST];
    hz_depot *depot = &hz_shards[shard].depots[class_];
    if (hz_atomic_peek(&depot->misses) == 0) return 0;
    hz_atomic_poke(&depot->misses, 0);
    size_t got = hz_span_take(shard, class_, blocks, (size_t)hz_cfg.refill_batch, NULL);
    hz_depot_give(shard, class_, blocks, got);
    return got;
}

/* ---- giving up ------------------------------------------------------------------------------ */

/* Moves up to `most` blocks to the spans; returns how many. */
static uint32_t depot_give_up(uint32_t shard, uint32_t class_, uint32_t most)
{
    enum { PART = 64 };
    void *blocks[PART];
    uint32_t gone = 0;
    for (size_t got = 1; got > 0 && gone < most; gone += (uint32_t)got) {
        const size_t part = most - gone < PART ? most - gone : PART;
        got = depot_pop(&hz_shards[shard].depots[class_], blocks, part);
        hz_span_give(shard, class_, blocks, got);
    }
    return gone;
}

/* How many blocks a depot gives up if no request needed `least` of them: half. A program that
 * allocates and frees in turn needs the rest soon. */
static uint32_t due_of(hz_depot *depot, uint32_t least)
{
    const uint32_t count = hz_atomic_peek(&depot->count);
    const uint32_t unasked = least < count ? least : count;
    return unasked - unasked / 2;
}

hz_decayed hz_depot_decay(uint32_t shard, uint32_t class_)
{
    enum { MOST = 1024 }; /* takes some ten microseconds, for which a malloc waits */
    hz_depot *depot = &hz_shards[shard].depots[class_];
    if (hz_atomic_peek(&depot->capacity) == 0) /* never used: then it has no page, and gets none */
        return hz_span_trim(shard, class_) ? HZ_DECAYED_ALL : HZ_DECAYED_NOTHING;
    const uint32_t least = hz_atomic_peek(&depot->least), due = due_of(depot, least);
    hz_atomic_poke(&depot->least, due > MOST ? 2 * (due - MOST) : UINT32_MAX);
    if (least == 0) return HZ_DECAYED_NOTHING; /* a request left none: nothing to spare */
    const uint32_t gone = depot_give_up(shard, class_, due < MOST ? due : MOST);
    hz_count(HZ_STAT_decayed_blocks, gone);
    if (due > MOST && gone == MOST) return HZ_DECAYED_PART;
    return hz_span_trim(shard, class_) || gone > 0 ? HZ_DECAYED_ALL : HZ_DECAYED_NOTHING;
}

void hz_depot_trim(void)
{
    for (uint32_t shard = 0; shard < hz_map.shards; shard++) {
        for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
            (void)depot_give_up(shard, class_, UINT32_MAX);
            (void)hz_span_trim(shard, class_);
        }
    }
}

/* ---- looking for a block -------------------------------------------------------------------- */

__attribute__((no_sanitize("thread"))) static bool blocks_hold(void *const *blocks, uint32_t count,
                                                               const void *block)
{
    for (uint32_t i = 0; i < count; i++)
        if (hz_plain_get(&blocks[i]) == block) return true;
    return false;
}

static bool stack_holds(hz_depot *depot, const void *block)
{
    depot_lock(depot);
    const bool is_held = blocks_hold(depot->blocks, hz_atomic_peek(&depot->count), block);
    hz_lock_release(&depot->lock);
    return is_held;
}

/* Also searches batches that another thread is filling or emptying: a live block left before. */
__attribute__((no_sanitize("thread"))) static bool batches_hold(const hz_depot *depot,
                                                                const void *block)
{
    const uint32_t batches = hz_atomic_get(&depot->capacity) / (uint32_t)hz_cfg.flush_batch;
    for (uint32_t number = 1; number <= batches; number++) {
        const hz_batch *batch = batch_at(depot, number);
        if (blocks_hold(batch->blocks, hz_plain_get(&batch->count), block)) return true;
    }
    return false;
}

bool hz_depot_holds(uint32_t shard, uint32_t class_, const void *block)
{
    hz_depot *depot = &hz_shards[shard].depots[class_];
    return hz_cfg.depot_lock == HZ_DEPOT_LOCK_LOCKFREE ? batches_hold(depot, block)
                                                       : stack_holds(depot, block);
}
