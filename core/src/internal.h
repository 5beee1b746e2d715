/*
 * The table of contents: what each file offers to the files above it. The layers, from the top:
 *
 *     alloc, free, override*,    the entry points
 *     extensions
 *     magazine, remote           front: per thread, no locks
 *     depot                      middle: shared by the threads of a shard
 *     span                       back: runs of pages cut into blocks
 *     large                      back: blocks of whole pages
 *     purge                      back: what goes back to the system
 *     pages, repair              back: the page pool, and its repair after a fork
 *     move, freed                pages that change their place; when pages were freed
 *     arena, os                  addresses and system calls
 *
 * A file calls downwards only. heap, start, fork, decay, background, parked, harden, guard, stats,
 * usage, lock, size_class and params stand beside them; deepbind stands alone. block.h tells where
 * blocks start, seal.h which of them are free.
 */
#ifndef HZ_INTERNAL_H
#define HZ_INTERNAL_H

#include <string.h>

#include "atomic.h"
#include "types.h"

/* HZ_FAST functions are inlined into the entry points and hold no #if; HZ_SLOW ones never are. */
#define HZ_FAST static inline __attribute__((always_inline))
#define HZ_SLOW __attribute__((noinline, cold))
#define HZ_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define HZ_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* In libhz.so the hottest functions have the C library's names as aliases, so there is no jump. */
#ifdef HZ_DROP_IN
#define HZ_DROP_IN_NAME(name, function)                                                            \
    extern __typeof(function) name __attribute__((visibility("default"), used, alias(#function)))
/* A linker takes an object file from libhz.a only if that file defines a missing symbol. This
 * refers to `name`, so that malloc brings along its other names; else the C library's malloc would
 * come with them. */
#define HZ_DROP_IN_WITH(name)                                                                      \
    extern const char name;                                                                        \
    static const char *const with_##name __attribute__((used)) = &name
#else
#define HZ_DROP_IN_NAME(name, function) _Static_assert(true, "no drop-in")
#define HZ_DROP_IN_WITH(name) _Static_assert(true, "no drop-in")
#endif

/* These symbols are hidden. Otherwise the compiler would load the address of each variable from a
 * table, as another library might replace it. */
#pragma GCC visibility push(hidden)

/* ---- state ---------------------------------------------------------------------------------- */

extern hz_map_t hz_map;
/* hz_map.shards of them. */
extern hz_shard *hz_shards;
/* The heap of a thread that has none: every magazine is both empty and full. */
extern hz_heap hz_heap_none;
extern _Thread_local hz_heap *hz_heap_mine __attribute__((tls_model("initial-exec")));
/* The `home_row` of hz_heap_mine, for allocations, and its `rows`, for frees. Where each free must
 * take the slow path, hz_rows_mine has no room for any block. */
extern _Thread_local hz_stack *hz_home_row_mine __attribute__((tls_model("initial-exec")));
extern _Thread_local hz_stack *hz_rows_mine __attribute__((tls_model("initial-exec")));
/* Where each free reads its block first: the offset in bytes from hz_rows_mine to the heap's own
 * rows. Otherwise 0. */
extern _Thread_local ptrdiff_t hz_rows_away __attribute__((tls_model("initial-exec")));
extern uint16_t hz_small_stacks[HZ_SMALL_MAX_BYTES / HZ_GRANULE_BYTES + 1];

/*
 * The stack at a byte offset from a row. The empty asm statement makes the compiler compute its
 * address once, instead of adding an index in every access. Newer Intel cores forward a store to
 * the next load without delay only if neither has an index. Otherwise each malloc and free waits
 * seven cycles for the `top` that the one before stored.
 */
HZ_FAST hz_stack *hz_stack_at(hz_stack *row, size_t bytes)
{
    hz_stack *stack = (hz_stack *)(void *)((unsigned char *)row + bytes);
    __asm__("" : "+r"(stack));
    return stack;
}

/* Byte offsets: of a class's stack in its row, and of a shard's row in the rows. Their sum fits the
 * lowest 16 bits of a page's step. */
#define HZ_STACK_OFFSET(class_) ((class_) * sizeof(hz_stack))
#define HZ_ROW_OFFSET(shard) ((shard)*HZ_STACK_OFFSET((size_t)HZ_CLASS_NUMBERS))
_Static_assert(HZ_ROW_OFFSET(HZ_SHARDS_MAX) == UINT16_MAX + 1, "a step names every row");

/* ---- size_class.c --------------------------------------------------------------------------- */

extern const uint32_t hz_class_bytes[HZ_CLASSES + 1];

/*
 * The class of a size in (HZ_SMALL_MAX_BYTES, HZ_CLASS_MAX_BYTES]: four classes to each doubling,
 * each a cache line above the round number (see size_class.c).
 */
HZ_FAST uint32_t hz_class_of_medium(size_t size)
{
    size_t below = size - HZ_CACHE_LINE_BYTES - 1;
    uint32_t log2 = 63u ^ (uint32_t)__builtin_clzl(below);
    return 4 * (log2 - 7) + (uint32_t)(below >> (log2 - 2)) + 5;
}

/* Byte offset of the stack for a size up to HZ_SMALL_MAX_BYTES. */
HZ_FAST uint32_t hz_small_stack(size_t size)
{
    return hz_small_stacks[(size + HZ_GRANULE_BYTES - 1) >> HZ_GRANULE_SHIFT];
}

/* The class of any size up to HZ_CLASS_MAX_BYTES. */
HZ_FAST uint32_t hz_class_of(size_t size)
{
    if (size > HZ_SMALL_MAX_BYTES) return hz_class_of_medium(size);
    return hz_small_stack(size) / sizeof(hz_stack);
}

/* The step of a page whose blocks are of `class_` and `shard`, see block.h. */
uint64_t hz_class_step(uint32_t class_, uint32_t shard);

/* ---- os.h is the system; arena.c: the pages and their tables -------------------------------- */

bool hz_arena_make(void);
/* Makes `pages` more pages usable at the arena's end, from `*first` on; false when the arena is
 * used up or the system refuses. Below them may be a gap, whose pages are in no free run. */
bool hz_arena_extend(size_t pages, size_t *first);
/* Returns the memory of pages to the system. They read as zero, and need hz_arena_reuse before they
 * are written to again. False when the system refuses. */
bool hz_arena_purge(size_t first, size_t pages);
bool hz_arena_is_strict(void); /* overcommit_memory=2: writable pages count as used */
bool hz_arena_reuse(size_t first, size_t pages);
/* Memory for hz's own structs: zeroed, never given back; NULL when the system refuses. */
void *hz_meta_alloc(size_t bytes);
/* Tells the system whether huge pages are wanted there. */
void hz_arena_advise(void *address, size_t bytes);
/* Pages from the arena's start that were ever handed out. */
size_t hz_arena_used_pages(void);
void hz_arena_after_fork(void);

#include "block.h"
#include "seal.h"

/* ---- lock.c --------------------------------------------------------------------------------- */

void hz_lock_wait(hz_lock *lock);
void hz_lock_wait_spinning(hz_lock *lock);
void hz_lock_wake(hz_lock *lock);

/* In the child of a fork: releases a lock that is held by a thread which the child does not have;
 * true if it was. */
bool hz_lock_inherit(hz_lock *lock);

#define HZ_LOCK_SLEEPERS ((uintptr_t)1) /* bit of its word: a thread sleeps until the release */

/* A number that no other living thread has. It stays the same in the child of a fork. */
HZ_FAST uintptr_t hz_lock_me(void)
{
    return (uintptr_t)&hz_heap_mine;
}

HZ_FAST bool hz_lock_try(hz_lock *lock)
{
    uintptr_t expected = 0;
    return hz_atomic_replace(&lock->word, &expected, hz_lock_me());
}

HZ_FAST void hz_lock_take(hz_lock *lock)
{
    if (HZ_UNLIKELY(!hz_lock_try(lock))) hz_lock_wait(lock);
}

HZ_FAST void hz_lock_release(hz_lock *lock)
{
    if (HZ_UNLIKELY((hz_atomic_swap(&lock->word, 0) & HZ_LOCK_SLEEPERS) != 0)) hz_lock_wake(lock);
}

/* ---- freed.c: when each dirty page was freed ------------------------------------------------ */

/* When a page was freed, in ms; 0: it is not dirty. */
uint32_t hz_freed_ms(size_t page);
/* Must precede the first use of pages; false without memory. */
bool hz_freed_make(size_t first, size_t pages);
void hz_freed_put(size_t first, size_t pages, uint32_t now_ms);
/* The lowest and the highest page of a range around `page` whose pages all have the same time. */
size_t hz_freed_alike_below(size_t page);
size_t hz_freed_alike_above(size_t page);

/* ---- pages.c: the page pool ----------------------------------------------------------------- */

/* A run of `pages` pages whose first is a multiple of `align` (a power of two); NULL when there is
 * no memory. Sets `*zeroed` to whether the run reads as zero. If `zeroed` is NULL, a part of the
 * run may be resident and another not. */
hz_page_info *hz_pages_alloc(size_t pages, size_t align, bool *zeroed);
void hz_pages_free(hz_page_info *run);
/* The same for a run that reads as zero and is not resident. */
void hz_pages_free_clean(hz_page_info *run);
/* Grows or shrinks a run in place; false when it cannot grow. */
bool hz_pages_resize(hz_page_info *run, size_t pages);
/* Free pages that are resident; no lock is taken. */
size_t hz_pages_dirty(void);
/* Takes the next run of up to `most` dirty pages that are old enough for the sweep. NULL: this part
 * of the sweep has none. The sweep is over when its `below` is 0. */
hz_page_info *hz_pages_sweep(hz_sweep *sweep, size_t most);
/* Takes such a run back; its first `purged` pages read as zero now. */
void hz_pages_swept(hz_page_info *run, size_t purged);

/* ---- repair.c: the page pool in the child of a fork ----------------------------------------- */

/* Calls `act` for every run in use, whatever another thread was doing at the fork. */
void hz_pages_each_out(void (*act)(hz_page_info *run));
void hz_pages_after_fork(void);

/* ---- move.c --------------------------------------------------------------------------------- */

/* Moves all pages of `from` to the start of `to`, which is clean; afterwards `from` is clean.
 * False: that cannot be done, and nothing has changed. */
bool hz_run_move(const hz_page_info *from, const hz_page_info *to);
/* Returns the memory of pages to the system: they read as zero afterwards. */
bool hz_run_purge(size_t first, size_t pages);

/* ---- purge.c: what goes back to the system -------------------------------------------------- */

/* Returns to the system a part of the pages that have been free for decay_ms or exceed
 * max_dirty_bytes: at most HZ_PURGE_BYTES. False when nothing is due. Call it once a malloc or
 * free, with no lock held. */
bool hz_purge_part(void);
enum { HZ_PURGE_BYTES = 1 << 20 };
/* Pages of a part when a whole run is purged: HZ_PURGE_BYTES, but a run has a thousand parts at
 * most. One longer than a GiB has rarely been touched as a whole. */
static inline size_t hz_purge_part_pages(size_t run_pages)
{
    const size_t part = HZ_PURGE_BYTES >> HZ_PAGE_SHIFT;
    return run_pages / 1024 > part ? run_pages / 1024 : part;
}
/* Whether more was due after the last part. */
bool hz_purge_is_behind(void);
/* Returns all dirty pages, in parts; false when there were none. */
bool hz_purge_all(void);
void hz_purge_after_fork(void);

/* ---- span.c: spans and bins ----------------------------------------------------------------- */

/*
 * Puts up to `want` free blocks into `out`; returns how many. With a lease, only blocks that were
 * freed before; if there are none and the lease is empty, it gets the uncut end of a span.
 */
size_t hz_span_take(uint32_t shard, uint32_t class_, void **out, size_t want, hz_lease *lease);
/* Cuts up to `want` blocks from a lease; returns how many. */
size_t hz_span_cut(hz_lease *lease, uint32_t class_, void **out, size_t want);
/* Takes back what is left of a lease. */
void hz_span_end_lease(uint32_t shard, uint32_t class_, hz_lease *lease);
/* Takes back blocks of one class and one shard; ends the program if one was back already. */
void hz_span_give(uint32_t shard, uint32_t class_, void *const *blocks, size_t count);
/* Whether a block of that class and shard is back in its span. */
bool hz_span_holds(uint32_t shard, uint32_t class_, const void *block);
/* Frees the empty spans that are kept; false when there are none. */
bool hz_span_trim(uint32_t shard, uint32_t class_);
/* Bytes of all blocks cut from spans that still exist. */
size_t hz_span_bytes(void);
/* The first block of the span that `block` lies in. */
void *hz_span_first_block(const void *block);
/* The span that `address` lies in. */
hz_page_info *hz_span_of(const void *address);
void hz_span_after_fork(void);

/* ---- large.c -------------------------------------------------------------------------------- */

/* `zeroed` as of hz_pages_alloc. */
void *hz_large_alloc(size_t size, size_t align, bool *zeroed);
void hz_large_free(void *block);
bool hz_large_resize(void *block, size_t size);
/* A larger block in the place of `block`, with its contents; NULL when there is no memory. */
void *hz_large_move(void *block, size_t size);
size_t hz_large_bytes(const void *block);

/* ---- depot.c -------------------------------------------------------------------------------- */

/* Takes up to `want` blocks from the depot, else from its spans or the heap's lease (NULL: none);
 * returns how many, 0 when there is no memory. */
size_t hz_depot_take(uint32_t shard, uint32_t class_, void **out, size_t want, hz_lease *lease);
/* Gives blocks to the depot; what it cannot hold goes on to the spans. */
void hz_depot_give(uint32_t shard, uint32_t class_, void *const *blocks, size_t count);
/* Gives a depot that ran dry a batch of blocks from its spans; returns how many. */
size_t hz_depot_top_up(uint32_t shard, uint32_t class_);
/* Moves everything that the depots hold to the spans. */
void hz_depot_trim(void);
/* Moves half of the blocks that no request has needed since the last call to their spans, and frees
 * the empty spans that are kept; false when there was nothing to do. */
bool hz_depot_decay(uint32_t shard, uint32_t class_);
/* Whether a block lies in the depot of its class and shard. */
bool hz_depot_holds(uint32_t shard, uint32_t class_, const void *block);

/* ---- magazine.c ----------------------------------------------------------------------------- */

bool hz_magazine_make_all(hz_heap *heap);
/* Pops a block of `class_`, after a refill if need be; NULL when there is no memory. */
void *hz_magazine_pop(hz_heap *heap, uint32_t class_);
/* Makes room in the magazine of `class_`, by growth or by a flush, and pushes `block`. */
void hz_magazine_make_room(hz_heap *heap, uint32_t class_, void *block);
void hz_magazine_flush_all(hz_heap *heap);
/* Swaps the block that would be popped next with a random one of the magazine. */
void hz_magazine_shuffle(hz_heap *heap, uint32_t class_, uint64_t random);
/* Whether a block lies in a magazine; the heap may be another thread's. */
bool hz_magazine_holds(const hz_heap *heap, uint32_t class_, const void *block);
/* How many blocks a magazine holds; the heap may be another thread's. */
uint32_t hz_magazine_count(const hz_heap *heap, uint32_t class_);

HZ_FAST void hz_magazine_push(hz_heap *heap, uint32_t class_, void *block)
{
    hz_stack *stack = &heap->home_row[class_];
    if (HZ_UNLIKELY(*stack->top == NULL)) {
        hz_magazine_make_room(heap, class_, block);
        return;
    }
    *stack->top = block;
    hz_plain_put(&stack->top, stack->top + 1); /* after the slot */
}

/* ---- remote.c ------------------------------------------------------------------------------- */

bool hz_remote_make(hz_heap *heap);
/* Puts a block of another shard into the ring, and hands the ring over when it is full. */
void hz_remote_push(hz_heap *heap, uint32_t class_, void *block);
void hz_remote_flush(hz_heap *heap);
/* Moves blocks from the inbox of the heap's shard to the shard's depots. */
void hz_remote_drain_inbox(hz_heap *heap);
/* Whether a block lies in a ring, which may be another thread's; in the inbox of a shard. */
bool hz_remote_holds(const hz_heap *heap, const void *block);
bool hz_inbox_holds(uint32_t shard, const void *block);
/* Adds the number of blocks of each class that lie there to `blocks`. */
void hz_remote_count(const hz_heap *heap, size_t *blocks);
void hz_inbox_count(uint32_t shard, size_t *blocks);

/* ---- heap.c --------------------------------------------------------------------------------- */

/* The thread's heap, made at need; &hz_heap_none when the thread can have none (it is ending, or no
 * memory). */
hz_heap *hz_heap_enter(void);
/* Fills the rows of threads without a heap. */
void hz_rows_start(void);
/* The same, without a call where the thread has one already. */
HZ_FAST hz_heap *hz_heap_entered(void)
{
    return HZ_UNLIKELY(hz_heap_mine == &hz_heap_none) ? hz_heap_enter() : hz_heap_mine;
}
hz_heap *hz_heap_first(void);
/* Heaps that have a thread; at least 1. */
uint32_t hz_heap_count(void);
/* Empties the warm heaps when no thread has ended for decay_ms. */
void hz_heap_cool_old(void);
/* Moves the blocks in the heaps of ended threads and in the depots to their spans. */
void hz_trim_shared(void);
void hz_heap_start(uint32_t cpus);
/* From now on the calling thread has no heap. */
void hz_heap_abandon(void);
void hz_heap_after_fork(void);

/* ---- parked.c ------------------------------------------------------------------------------- */

/* For a block that should be free but has no seal: leaves it out of use, with a warning, or ends
 * the program. The caller holds no lock. */
void hz_leave_out(const void *block);
/* Whether a block of `class_` waits, free, in a magazine, a ring, a depot or its span. */
bool hz_is_parked(const void *block, uint32_t class_);

/* ---- free.c --------------------------------------------------------------------------------- */

/* Makes the heap's array for deferred frees or for its quarantine. */
bool hz_free_make(hz_heap *heap);
/* Carries out the deferred frees of a heap. */
void hz_free_deferred(hz_heap *heap);
/* Ends the program if a block of `class_` is free. */
void hz_require_live(const void *block, uint32_t class_);
/* Puts a sealed block into the heap's magazine or, if it is of another shard, its ring. */
void hz_free_to_heap(hz_heap *heap, uint32_t class_, void *block);

/* ---- alloc.c -------------------------------------------------------------------------------- */

/* A block of a class, or NULL and ENOMEM. */
void *hz_class_alloc(uint32_t class_);
/* The smallest class that serves an alignment, or HZ_CLASS_NONE. */
uint32_t hz_class_aligned(size_t align, size_t size);
/* As hz_large_alloc; without memory it trims what no thread holds, and tries once more. */
void *hz_large_alloc_retrying(size_t size, size_t align, bool *zeroed);

/* ---- harden.c, guard.c: hardening ----------------------------------------------------------- */

HZ_FAST bool hz_is_hardened(void)
{
    return hz_cfg.hardening != HZ_HARDENING_OFF;
}

/* Whether blocks are fenced and wait in quarantine. */
HZ_FAST bool hz_is_fenced(void)
{
    return hz_cfg.hardening == HZ_HARDENING_FULL;
}

/* Whether frees are deferred: not in the modes that check each free at the call. */
HZ_FAST bool hz_is_deferring(void)
{
    return hz_cfg.defer_free > 0 && hz_cfg.double_free == HZ_DOUBLE_FREE_AT_REUSE &&
           hz_cfg.hardening == HZ_HARDENING_OFF;
}

void hz_fast_path_open(void);
/* The allocation functions and free under `full`. */
void *hz_harden_alloc(size_t size, size_t align);
void hz_harden_free(void *block, uint32_t class_);
/* The bytes that were asked for. */
size_t hz_harden_usable_size(const void *block, uint32_t class_);
/* Ends the program if `size` is not what was asked for. */
void hz_harden_require_size(const void *block, size_t size);
/* Fills a block that is being cut as a free one. */
void hz_harden_cut(void *block, uint32_t class_);
/* Waits for threads that may still check a block of a span that is about to be freed. */
void hz_harden_span_goes(void);
/* Empties a thread's quarantine. */
void hz_quarantine_empty(hz_heap *heap);

/* As hz_pages_alloc and hz_pages_free, under `full` between guards. */
hz_page_info *hz_guard_pages_alloc(size_t pages, size_t align, bool *zeroed);
void hz_guard_pages_free(hz_page_info *run);
void *hz_guard_alloc(size_t size, size_t align);
void hz_guard_free(void *block);
size_t hz_guard_asked(const void *block);
/* Whether nothing was written behind a large block; true if another thread has just freed it. */
bool hz_guard_is_whole(const void *block);
/* malloc(0) where it may not be touched. NULL: none is left. False: `block` is not one. */
void *hz_guard_zero(void);
bool hz_guard_is_zero(const void *block);
bool hz_guard_zero_free(void *block);
void hz_guard_after_fork(void);

/* ---- start.c -------------------------------------------------------------------------------- */

/* Makes hz ready: configuration, arena, hooks. Idempotent; false when there is no memory to start
 * with. */
bool hz_start(void);
void hz_start_after_fork(void);
/* Writes a message and aborts. The caller holds no lock, as a handler of SIGABRT may allocate. */
_Noreturn void hz_die(const char *what, const void *address);
void hz_warn_once(const char *what, const void *address);

/* ---- decay.c -------------------------------------------------------------------------------- */

/* Called on slow paths: every TICK_CALLS calls some memory decays. Only a free returns pages to the
 * system, so that a realloc, a malloc and a free, does it once. */
void hz_tick(hz_heap *heap);
void hz_tick_of_free(hz_heap *heap);
/* Does a part of the decay that is due; false when nothing is. */
bool hz_decay(void);
void hz_decay_after_fork(void);

/* ---- fork.c --------------------------------------------------------------------------------- */

/* Registers the handler that repairs hz in the child of a fork. */
void hz_fork_start(void);

/* ---- background.c --------------------------------------------------------------------------- */

void hz_background_start(void);

/* ---- stats.c -------------------------------------------------------------------------------- */

/* With HZ_STATS_COUNTERS=OFF only what hz itself reads is counted (hz_usage_now). */
#ifdef HZ_UNCOUNTED
#define HZ_IS_COUNTED(stat) ((stat) == HZ_STAT_committed_bytes)
#else
#define HZ_IS_COUNTED(stat) ((void)(stat), true)
#endif

/* Counts in the thread's own heap; threads without one share hz_heap_none's and may lose a count.
 */
HZ_FAST void hz_count(hz_stat stat, uint64_t by)
{
    if (!HZ_IS_COUNTED(stat)) return;
    _Atomic uint64_t *counter = &hz_heap_mine->counters.of[stat];
    hz_atomic_poke(counter, hz_atomic_peek(counter) + by);
}

/* Of all threads. */
uint64_t hz_stats_total(hz_stat stat);
void hz_stats_dump(const char *path_pattern);

#pragma GCC visibility pop

#endif
