/*
 * A thread's heap: birth, adoption by another thread, death.
 *
 * A heap is never unmapped. When its thread ends, the heap waits for a new thread. At first it is
 * warm: it keeps the blocks in its magazines, which then pass to one thread. At most as many heaps
 * as there are CPUs stay warm, until no thread has ended for decay_ms. The blocks of the others go
 * to the depots: those heaps are cold. When no thread has ended for decay_ms, the slots of cold
 * heaps go back to the system, those of one heap in each tick: it is bare then. So a program that
 * once had thousands of threads does not pay for their slots as long as it lives.
 *
 * A thread gets a heap of a shard that belongs to the node where the thread begins. When it was seen
 * on another node twice, half an epoch of budget.c apart, it gets one of that node: pools pin their
 * threads after these have allocated. The old heap serves the next thread of its node.
 */
#include <hz/hz.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>

#include "internal.h"
#include "os.h"

enum { WARM_MOST = 16 }; /* heaps that wait with their blocks, even on the largest machine */

/* What a pop from an empty magazine finds, a block without a seal, which is never handed out; and
 * what a push to a full one finds, NULL. Zero is no seal, as every key has bit 62 (seal.h). */
static uint64_t unsealed[HZ_GRANULE_BYTES / sizeof(uint64_t)];
static void *nothing[2] = {unsealed, NULL};

/* The rows of a thread without a heap, and of one whose frees all take the slow path. */
static hz_stack rows_none[HZ_SHARDS_MAX][HZ_CLASS_NUMBERS] = {
    {[0 ... HZ_CLASS_NUMBERS - 1] = {.top = &nothing[1]}}, /* for the others see hz_rows_start */
};

_Thread_local hz_heap *hz_heap_mine __attribute__((tls_model("initial-exec"))) = &hz_heap_none;
_Thread_local hz_stack *hz_home_row_mine __attribute__((tls_model("initial-exec"))) = rows_none[0];
_Thread_local hz_stack *hz_rows_mine __attribute__((tls_model("initial-exec"))) = rows_none[0];
_Thread_local ptrdiff_t hz_rows_away __attribute__((tls_model("initial-exec")));

/* Rounds of destructors in which an ending thread may still get a heap. It gives its heap up in
 * each round, and destructors of other thread-specific data may allocate afterwards. In what may be
 * the last round, and when the C library frees its own data after all rounds, it gets none: no
 * destructor would give it up. */
enum { ROUNDS = PTHREAD_DESTRUCTOR_ITERATIONS - 1 };
static _Thread_local uint32_t rounds_left __attribute__((tls_model("initial-exec"))) = ROUNDS;

hz_heap hz_heap_none = {
    .home_row = rows_none[0],
    .rows = rows_none[0],
    .shard = HZ_SHARDS_MAX, /* no block is at home here */
};

static struct {
    hz_lock lock;                 /* guards the rest */
    hz_heap *_Atomic all;         /* every heap there ever was; only grows */
    hz_heap *warm;                /* heaps without a thread that hold blocks, newest first */
    hz_heap *cold[HZ_NODES_MAX];  /* heaps without a thread or blocks, by node */
    hz_heap *bare[HZ_NODES_MAX];  /* such heaps without slots, by node */
    _Atomic uint32_t warm_count;  /* length of `warm` */
    _Atomic uint32_t cold_count;  /* length of all `cold` together */
    uint32_t warm_most;           /* most heaps that stay warm: the CPUs, at most WARM_MOST */
    _Atomic uint32_t warmed_ms;   /* when the newest of them came */
    _Atomic uint32_t owned_count; /* heaps that have a thread */
    _Atomic uint32_t ended_count; /* threads that had a heap and have ended */
    uint32_t born[HZ_NODES_MAX];  /* heaps that were made, by node */
} heaps;

/* Its destructor tells hz that a thread ends. It is called for any value but NULL, also for one
 * that a program stores there by mistake. A process has 1024 such keys: if none is left, no thread
 * gets a heap. */
static pthread_key_t ending_key;
static _Atomic bool has_key;
static const char is_to_end = 0;

hz_heap *hz_heap_first(void)
{
    return hz_atomic_get(&heaps.all);
}

uint32_t hz_heap_count(void)
{
    const uint32_t count = hz_atomic_peek(&heaps.owned_count);
    return count > 0 ? count : 1;
}

uint32_t hz_heap_node(void)
{
    if (hz_heap_mine != &hz_heap_none) return hz_node_of(hz_heap_mine->shard);
    return hz_map.nodes > 1 ? hz_os_node() % hz_map.nodes : 0;
}

uint32_t hz_heap_ended(void)
{
    return hz_atomic_peek(&heaps.ended_count);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Whether each free takes the slow path: then hz_rows_mine has no room. */
static bool is_every_free_slow(void)
{
    return hz_is_deferring() || hz_cfg.double_free == HZ_DOUBLE_FREE_AT_CALL || hz_is_hardened();
}

/* The rows of all shards, to be read only; NULL where a heap's rows lie on one page of the kernel,
 * or where the system refused it. */
static hz_stack *rows_shared;

static size_t rows_bytes(void)
{
    return hz_map.shards * HZ_ROW_OFFSET((size_t)1);
}

static void rows_fill(hz_stack *rows, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += HZ_ROW_OFFSET(1))
        for (uint32_t class_ = 0; class_ < HZ_CLASS_NUMBERS; class_++)
            hz_stack_at(rows, at)[class_] = (hz_stack){&nothing[1], hz_map.keys[class_]};
}

/* Filled at the start and not by the compiler, so that unused rows cost no memory. */
void hz_rows_start(void)
{
    rows_fill(rows_none[0], rows_bytes());
    if (rows_bytes() > hz_os_page_bytes()) rows_shared = hz_os_map_shared(HZ_PAGE_BYTES, rows_none);
}

/* A heap's rows from `from` to `to`, which are not its own: those of all heaps are the same memory.
 */
static bool rows_share(hz_stack *rows, size_t from, size_t to)
{
    hz_stack *const at = hz_stack_at(rows, from);
    if (from == to || hz_os_map_again(hz_stack_at(rows_shared, from), at, to - from)) return true;
    if (!hz_os_renew(at, to - from)) return false;
    rows_fill(at, to - from);
    return true;
}

/* A row per shard. Where they have several pages of the kernel, only that of the home row is the
 * heap's own. */
static hz_stack *rows_make_long(uint32_t shard)
{
    const size_t page = hz_os_page_bytes(), own = HZ_ROW_OFFSET(shard) & -page;
    hz_stack *const rows = hz_os_map(HZ_PAGE_BYTES);
    if (rows == NULL) return NULL;
    rows_fill(hz_stack_at(rows, own), page);
    return rows_share(rows, 0, own) && rows_share(rows, own + page, rows_bytes()) ? rows : NULL;
}

/* A heap, its rows if they are short, and its first magazines lie side by side, and beside those of
 * other heaps: a thread that allocates little touches no more than that. */
static hz_heap *heap_place(uint32_t shard)
{
    const bool is_long = rows_shared != NULL;
    const size_t rows = is_long ? 0 : rows_bytes(), more = hz_magazine_bytes();
    hz_heap *heap = hz_meta_alloc(sizeof *heap + rows + hz_magazine_near_bytes());
    unsigned char *far = hz_meta_alloc(more + hz_remote_bytes());
    if (heap == NULL || far == NULL) return NULL;
    heap->shard = shard;
    heap->rows = is_long ? rows_make_long(shard) : (hz_stack *)(heap + 1);
    if (heap->rows == NULL) return NULL;
    rows_fill(heap->rows, rows);
    heap->home_row = heap->rows + shard * (size_t)HZ_CLASS_NUMBERS;
    hz_magazine_make_all(heap, (unsigned char *)(heap + 1) + rows, far);
    hz_remote_make(heap, (void **)(void *)(far + more));
    return heap;
}

/* ---- birth ---------------------------------------------------------------------------------- */

static void heap_use(hz_heap *heap)
{
    hz_heap_mine = heap;
    hz_home_row_mine = heap->home_row;
    hz_rows_mine = is_every_free_slow() ? rows_none[0] : heap->rows;
    /* where each free reads its block first, to see its seal */
    const bool is_read = is_every_free_slow() && !hz_is_deferring() && !hz_is_fenced();
    hz_rows_away = is_read ? (char *)heap->rows - (char *)rows_none : 0;
}

/* The lock is held. */
static void count_by(_Atomic uint32_t *count, int32_t by)
{
    hz_atomic_poke(count, hz_atomic_peek(count) + (uint32_t)by);
}

/* Without the lock but at its end, as the system may have to be asked for memory. */
static hz_heap *heap_make(uint32_t shard)
{
    hz_heap *heap = heap_place(shard);
    if (heap == NULL || !hz_free_make(heap) || !hz_quarantine_make(heap)) return NULL;
    hz_lock_take(&heaps.lock);
    heap->next = hz_atomic_peek(&heaps.all);
    hz_atomic_put(&heaps.all, heap);
    count_by(&heaps.owned_count, 1);
    hz_lock_release(&heaps.lock);
    return heap;
}

static hz_heap *heap_pop(hz_heap **list)
{
    hz_heap *heap = *list;
    if (heap != NULL) *list = heap->next_free;
    return heap;
}

static void heap_push(hz_heap **list, hz_heap *heap)
{
    heap->next_free = *list;
    hz_plain_put(list, heap);
}

/* The newest warm heap of a node. */
static hz_heap *warm_pop(uint32_t node)
{
    hz_heap **at = &heaps.warm;
    while (*at != NULL && hz_node_of((*at)->shard) != node) at = &(*at)->next_free;
    hz_heap *heap = heap_pop(at);
    if (heap != NULL) count_by(&heaps.warm_count, -1);
    return heap;
}

static hz_heap *cold_pop(uint32_t node)
{
    hz_heap *heap = heap_pop(&heaps.cold[node]);
    if (heap != NULL) count_by(&heaps.cold_count, -1);
    return heap;
}

/* The node's heaps are spread over its shards in turn: those whose remainder is the node. */
static uint32_t shard_next(uint32_t node)
{
    const uint32_t shards = (hz_map.shards - node + hz_map.nodes - 1) / hz_map.nodes;
    return node + hz_map.nodes * (heaps.born[node]++ % shards);
}

/* A heap of the node whose thread has ended. */
static hz_heap *heap_adopt(uint32_t node)
{
    hz_heap *heap = warm_pop(node);
    if (heap == NULL) heap = cold_pop(node);
    if (heap == NULL) heap = heap_pop(&heaps.bare[node]);
    if (heap == NULL) return NULL;
    count_by(&heaps.owned_count, 1);
    hz_budget_join(heap);
    return heap;
}

/* Without memory for a new heap, one of another node serves. */
static hz_heap *heap_adopt_any(void)
{
    hz_heap *heap = NULL;
    hz_lock_take(&heaps.lock);
    for (uint32_t node = 0; heap == NULL && node < hz_map.nodes; node++) heap = heap_adopt(node);
    hz_lock_release(&heaps.lock);
    return heap;
}

static hz_heap *heap_find(uint32_t node, hz_stat *how)
{
    uint32_t shard = 0;
    hz_lock_take(&heaps.lock);
    hz_heap *heap = heap_adopt(node);
    if (heap == NULL) shard = shard_next(node);
    hz_lock_release(&heaps.lock);
    *how = HZ_STAT_heaps_adopted;
    if (heap != NULL) return heap;
    heap = heap_make(shard);
    if (heap == NULL) return heap_adopt_any();
    *how = HZ_STAT_heaps_born;
    return heap;
}

static void heap_take(hz_heap *heap, hz_stat how)
{
    heap->astray = 0;
    heap_use(heap);
    if (hz_is_controlled()) hz_atomic_poke(&heap->thread, hz_os_thread());
    hz_count(how, 1);
}

static void heap_leave(hz_heap *heap);

HZ_SLOW hz_heap *hz_heap_enter(void)
{
    hz_stat how;
    if (rounds_left == 0 || !hz_start() || !hz_atomic_get(&has_key)) return &hz_heap_none;
    const uint32_t node = hz_heap_node();
    if (hz_heap_mine != &hz_heap_none) return hz_heap_mine; /* one of these has allocated */
    hz_heap *heap = heap_find(node, &how);
    if (heap == NULL) return &hz_heap_none;
    heap_take(heap, how);
    int saved = errno;
    /* It may allocate, so the heap is in place before. */
    if (HZ_UNLIKELY(pthread_setspecific(ending_key, &is_to_end) != 0)) heap_leave(heap);
    errno = saved;
    return hz_heap_mine;
}

HZ_SLOW hz_heap *hz_heap_follow(void)
{
    hz_stat how;
    hz_heap *const old = hz_heap_mine;
    const int saved = errno;
    const uint32_t node = hz_os_node() % hz_map.nodes;
    old->astray = 0;
    if (node == hz_node_of(old->shard)) return old;
    hz_heap *heap = heap_find(node, &how);
    if (heap != NULL) {
        heap_leave(old);
        heap_take(heap, how);
        hz_count(HZ_STAT_heaps_followed, 1);
    }
    errno = saved;
    return hz_heap_mine;
}

/* ---- death ---------------------------------------------------------------------------------- */

/* Carries out deferred frees, and hands the ring over. */
static void heap_settle(hz_heap *heap)
{
    hz_free_deferred(heap);
    hz_remote_flush(heap);
}

/* Takes the heap that has been warm longest, if there are more than `keep`; else NULL. */
static hz_heap *take_oldest_warm(uint32_t keep)
{
    if (hz_atomic_peek(&heaps.warm_count) <= keep) return NULL; /* most threads end so */
    hz_lock_take(&heaps.lock);
    hz_heap *oldest = NULL;
    uint32_t count = hz_atomic_peek(&heaps.warm_count);
    if (count > keep) {
        hz_heap **at = &heaps.warm;
        while ((*at)->next_free != NULL) at = &(*at)->next_free;
        oldest = *at;
        *at = NULL;
        hz_atomic_poke(&heaps.warm_count, count - 1);
    }
    hz_lock_release(&heaps.lock);
    return oldest;
}

static void cool(uint32_t keep)
{
    hz_heap *heap;
    while ((heap = take_oldest_warm(keep)) != NULL) {
        hz_quarantine_empty(heap);
        hz_magazine_flush_all(heap);
        hz_lock_take(&heaps.lock);
        heap_push(&heaps.cold[hz_node_of(heap->shard)], heap);
        count_by(&heaps.cold_count, 1);
        hz_lock_release(&heaps.lock);
    }
}

/* Makes one cold heap bare; false where there is none. */
static bool strip_one(void)
{
    hz_heap *heap = NULL;
    if (hz_atomic_peek(&heaps.cold_count) == 0) return false;
    hz_lock_take(&heaps.lock);
    for (uint32_t node = 0; heap == NULL && node < hz_map.nodes; node++) heap = cold_pop(node);
    hz_lock_release(&heaps.lock);
    if (heap == NULL) return false;
    const int saved = errno; /* of a malloc */
    hz_magazine_forget_slots(heap);
    errno = saved;
    hz_lock_take(&heaps.lock);
    heap_push(&heaps.bare[hz_node_of(heap->shard)], heap);
    hz_lock_release(&heaps.lock);
    return true;
}

bool hz_heap_decay(void)
{
    if (hz_atomic_peek(&heaps.warm_count) + hz_atomic_peek(&heaps.cold_count) == 0) return false;
    const uint32_t warmed_ms = hz_atomic_get(&heaps.warmed_ms); /* before the clock is read */
    if (hz_os_now_ms() - warmed_ms < (uint32_t)hz_live(decay_ms)) return false;
    cool(0);
    return strip_one();
}

static void heap_leave(hz_heap *heap)
{
    heap_settle(heap);
    heap_use(&hz_heap_none);
    hz_budget_leave(heap);
    hz_atomic_poke(&heap->thread, 0);
    hz_lock_take(&heaps.lock);
    heap_push(&heaps.warm, heap);
    count_by(&heaps.owned_count, -1);
    count_by(&heaps.warm_count, 1);
    hz_atomic_poke(&heaps.warmed_ms, hz_os_now_ms());
    hz_lock_release(&heaps.lock);
    cool(heaps.warm_most);
}

/* Called in each round of destructors until rounds_left is 0. */
static void thread_ends(void *unused)
{
    int saved = errno;
    (void)unused;
    if (rounds_left == ROUNDS) hz_atomic_add(&heaps.ended_count, 1);
    if (rounds_left > 0) rounds_left--;
    if (hz_heap_mine != &hz_heap_none) heap_leave(hz_heap_mine);
    if (hz_atomic_peek(&heaps.owned_count) == 0) hz_rest_end();
    hz_rest_note();
    if (rounds_left > 0) (void)pthread_setspecific(ending_key, &is_to_end);
    errno = saved;
}

/* The magazines stay as they are: the caller may be in the middle of a change. */
void hz_heap_abandon(void)
{
    rounds_left = 0;
    if (hz_heap_mine == &hz_heap_none) return;
    pthread_setspecific(ending_key, NULL);
    heap_use(&hz_heap_none);
}

void hz_heap_renounce(void)
{
    rounds_left = 0;
    if (hz_heap_mine == &hz_heap_none) return;
    pthread_setspecific(ending_key, NULL);
    heap_leave(hz_heap_mine);
}

/* ---- trimming ------------------------------------------------------------------------------- */

void hz_trim_shared(void)
{
    hz_pages_end_huge();
    cool(0);
    hz_depot_trim();
}

/* What waits in a quarantine stays: one request that cannot be met would empty it. Not each first
 * shortage empties the magazines: near a limit the next follows a few refills later, and all blocks
 * would go there and back for each. */
void hz_trim_in_need(bool is_second)
{
    enum { CALLS_APART = 64 };
    hz_heap *heap = hz_heap_mine;
    const bool is_soon = heap->short_at != 0 && heap->slow_calls - heap->short_at < CALLS_APART;
    if (heap != &hz_heap_none && (is_second || !is_soon)) {
        heap->short_at = heap->slow_calls;
        heap_settle(heap);
        hz_magazine_flush_all(heap);
    }
    hz_trim_shared();
}

bool hz_trim(void)
{
    if (!hz_start()) return false;
    if (hz_heap_mine != &hz_heap_none) {
        heap_settle(hz_heap_mine);
        hz_quarantine_empty(hz_heap_mine);
        hz_magazine_flush_all(hz_heap_mine);
    }
    hz_tick_ask(hz_heap_mine);
    hz_trim_shared();
    while (strip_one()) {
    }
    return hz_purge_all();
}

/* ---- fork ----------------------------------------------------------------------------------- */

static uint32_t length(const hz_heap *heap)
{
    uint32_t count = 0;
    for (; heap != NULL; heap = heap->next_free) count++;
    return count;
}

/* Other threads' heaps stay as they were: what they held is lost. */
void hz_heap_after_fork(void)
{
    hz_atomic_poke(&heaps.owned_count, hz_heap_mine == &hz_heap_none ? 0 : 1);
    hz_atomic_poke(&heaps.ended_count, 0);
    hz_budget_after_fork();
    for (hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next)
        (void)hz_lock_inherit(&heap->looking);
    if (!hz_lock_inherit(&heaps.lock)) return;
    hz_atomic_poke(&heaps.warm_count, length(heaps.warm));
    hz_atomic_poke(&heaps.cold_count, 0);
    for (uint32_t node = 0; node < hz_map.nodes; node++)
        count_by(&heaps.cold_count, (int32_t)length(heaps.cold[node]));
}

/* Skips the first key, mostly number 0: a program that forgets to make its own key uses number 0.
 */
static bool key_make(void)
{
    pthread_key_t first;
    if (pthread_key_create(&first, NULL) != 0) return false;
    const bool is_made = pthread_key_create(&ending_key, thread_ends) == 0;
    pthread_key_delete(first);
    return is_made;
}

void hz_heap_prepare(void)
{
    static _Atomic uint32_t is_prepared;
    if (hz_atomic_swap(&is_prepared, 1) == 0) hz_atomic_put(&has_key, key_make());
}

void hz_heap_start(uint32_t cpus)
{
    heaps.warm_most = cpus < WARM_MOST ? cpus : WARM_MOST;
}
