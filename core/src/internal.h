/*
 * The table of contents: what each file offers to the files above it. The layers, from the top:
 *
 *     alloc, free, override      the entry points
 *     magazine, remote           front: per thread, no locks
 *     depot                      middle: shared by the threads of a shard
 *     span                       back: runs of pages cut into blocks
 *     pages, large               back: the page heap, blocks of whole pages
 *     arena, os                  addresses and system calls
 *
 * A file calls downwards only. heap, start, decay, background, stats, lock, size_class and params
 * stand beside them.
 */
#ifndef HZ_INTERNAL_H
#define HZ_INTERNAL_H

#include <string.h>

#include "atomic.h"
#include "types.h"

/* Every function on the way of a block is marked: fast ones are inlined into the entry points and
 * hold no #if. */
#define HZ_FAST static inline __attribute__((always_inline))
#define HZ_SLOW __attribute__((noinline, cold))
#define HZ_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define HZ_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* In libhz.so the hottest functions bear the names of the C library, too, without a jump between.
 */
#ifdef HZ_DROP_IN
#define HZ_DROP_IN_NAME(name, function)                                                            \
    extern __typeof(function) name __attribute__((visibility("default"), used, alias(#function)))
#else
#define HZ_DROP_IN_NAME(name, function) _Static_assert(true, "no drop-in")
#endif

/* All of it is hz's own: without this the compiler reaches for every variable as if another library
 * might replace it. */
#pragma GCC visibility push(hidden)

/* ---- state that the fast paths read --------------------------------------------------------- */

extern hz_map_t hz_map;
extern hz_heap
    hz_heap_none; /* the heap of a thread that has none: every magazine both empty and full */
extern _Thread_local hz_heap *hz_heap_mine __attribute__((tls_model("initial-exec")));
extern const uint16_t hz_small_stacks[HZ_SMALL_MAX_BYTES / HZ_GRANULE_BYTES + 1];

/*
 * The stack that lies so far into a heap's. The empty statement makes the compiler work its address
 * out, and not add an index in every access: newer Intel cores pass what was stored on to the next
 * load at once, but only where neither adds an index to its base. Else each malloc and free waits
 * seven cycles for the `top` that the one before has stored.
 */
HZ_FAST hz_stack *hz_stack_at(hz_heap *heap, size_t bytes)
{
    hz_stack *stack = (hz_stack *)(void *)((unsigned char *)heap->stacks + bytes);
    __asm__("" : "+r"(stack));
    return stack;
}

/* How far into a heap's stacks that of a class lies, in bytes. */
#define HZ_STACK_OFFSET(class_) ((class_) * sizeof(hz_stack))

HZ_FAST hz_stack *hz_stack_of(hz_heap *heap, uint32_t class_)
{
    return hz_stack_at(heap, HZ_STACK_OFFSET(class_));
}

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

/* Where the class of a size up to HZ_SMALL_MAX_BYTES has its stack. */
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

/* What hz_distance counts by in the pages of a class. */
uint64_t hz_class_step(uint32_t class_);

/* ---- os.h is the system; arena.c: the reserved range and its tables -------------------------- */

bool hz_arena_make(void);
enum { HZ_NOBODYS_PAGES = 2 };
/* Makes `pages` pages at the arena's end usable; false when it is used up or the system refuses.
 * Once it passes over some: of those, all but the last HZ_NOBODYS_PAGES are usable, too. */
bool hz_arena_extend(size_t pages, size_t *first);
/* Memory for hz's own structs: zeroed, never given back; NULL when the system refuses. */
void *hz_meta_alloc(size_t bytes);
void hz_arena_fork_lock(void);
void hz_arena_fork_unlock(void);

HZ_FAST void *hz_page_address(size_t page)
{
    return (void *)(hz_map.base + (page << HZ_PAGE_SHIFT));
}

HZ_FAST size_t hz_page_of(const void *address)
{
    return ((uintptr_t)address - hz_map.base) >> HZ_PAGE_SHIFT;
}

/* The number of a block's granule; at least hz_map.granules for what is outside the arena or no
 * multiple of a granule. */
HZ_FAST size_t hz_granule_of(const void *block)
{
    uintptr_t offset = (uintptr_t)block - hz_map.base;
    return offset >> HZ_GRANULE_SHIFT | offset << (HZ_WORD_BITS - HZ_GRANULE_SHIFT);
}

/* The entry of the page that an address lies in. Addresses outside of the arena share those
 * entries. `mask` is hz_map.page_mask, or 0: the first entry, which is always zero. */
HZ_FAST hz_page *hz_page_under(const void *address, uintptr_t mask)
{
    const uintptr_t at = (uintptr_t)address >> (HZ_PAGE_SHIFT - HZ_PAGE_ENTRY_SHIFT) & mask;
    return (hz_page *)(void *)((unsigned char *)hz_map.pages + at);
}

HZ_FAST hz_page *hz_page_at(const void *address)
{
    return hz_page_under(address, hz_map.page_mask);
}

/*
 * How far an address is from the last block that was cut in its page, so that one comparison tells
 * whether a block starts there. All is modulo 2^64. Where blocks have n bytes, `step` is
 * -(2^64 / n + slope); the slope is HZ_SLOPE to three times that, as it leaves the lowest 16 bits
 * to the stack. A block that starts i * n bytes below the last is at a distance of i * n * slope,
 * which is below HZ_DISTANCE_MAX for the longest span that there may be. Whatever is above the last
 * block is nearly 2^64 away; what is no multiple of n, at least 2^64 / n less HZ_DISTANCE_MAX; and
 * what is so far away that it only shares the entry, at least 2^47, but for one address in 2^17
 * (tests/core/block_starts.c).
 */
HZ_FAST uint64_t hz_distance(const hz_page *page, uint64_t step, const void *address)
{
    return hz_atomic_plus(&page->origin, (uintptr_t)address * step);
}

#define HZ_SLOPE ((uint64_t)33 << 10)
#define HZ_DISTANCE_MAX ((uint64_t)1 << 38)

/*
 * The entry of a page in which the last block that was cut starts at `last`. Who reads it meanwhile
 * asks for a block that was there before, of which both the old entry and the new one tell, or for
 * one at the start of the next page, which may be another's: it must never see a step with the
 * origin of another one. So the step is written last and read first, and cleared alone.
 */
HZ_FAST void hz_page_set(hz_page *page, uint64_t step, const void *last)
{
    hz_atomic_poke(&page->origin, -((uintptr_t)last * step));
    hz_atomic_put(&page->step, step);
}

/* The entry of a page in which none was. */
HZ_FAST void hz_page_clear(hz_page *page)
{
    hz_atomic_put(&page->step, 0);
}

/* Whether a block was cut there. */
HZ_FAST bool hz_is_start(const hz_page *page, const void *address)
{
    const uint64_t step = hz_atomic_peek(&page->step);
    return step != 0 && hz_distance(page, step, address) < HZ_DISTANCE_MAX;
}

/* Where in a heap the stack lies that a step tells, in bytes. */
HZ_FAST size_t hz_step_stack(uint64_t step)
{
    return (uint16_t)step;
}

/*
 * The seal of a free block. It is the second word, as what still writes to a block that it has
 * freed mostly writes the first (a list's link, a table of functions). It is neither a pointer nor
 * a small number, so no live block bears it by chance; and of 32 bits, signed, so that instructions
 * hold it.
 */
#define HZ_SEAL ((uint64_t)-0x5a3c1d2fLL)
HZ_FAST bool hz_is_sealed(const void *block)
{
    return ((const uint64_t *)block)[1] == HZ_SEAL;
}

HZ_FAST void hz_seal(void *block)
{
    ((uint64_t *)block)[1] = HZ_SEAL;
}

/* Instead of its seal, a block that is given out bears its own address, which hardly any program
 * writes there: so one that was freed twice is told from one that was written to. */
HZ_FAST void hz_unseal(void *block)
{
    ((uint64_t *)block)[1] = (uintptr_t)block;
}

HZ_FAST bool hz_is_unsealed(const void *block)
{
    return ((const uint64_t *)block)[1] == (uintptr_t)block;
}

/* The class of the live block that starts at `block`; HZ_CLASS_NONE when none does. */
HZ_FAST uint32_t hz_class_of_live(const void *block)
{
    if (hz_granule_of(block) >= hz_map.granules) return HZ_CLASS_NONE;
    if (!hz_is_start(hz_page_at(block), block)) return HZ_CLASS_NONE;
    const hz_span *page = &hz_map.spans[hz_page_of(block)];
    const uint32_t class_ = page->class_;
    if (class_ != HZ_CLASS_LARGE && (uintptr_t)block % HZ_PAGE_BYTES < page->colour)
        return HZ_CLASS_NONE;
    return class_ != HZ_CLASS_LARGE && hz_is_sealed(block) ? HZ_CLASS_NONE : class_;
}

/* ---- lock.c --------------------------------------------------------------------------------- */

void hz_lock_wait(hz_lock *lock);
void hz_lock_wait_spinning(hz_lock *lock);
void hz_lock_wake(hz_lock *lock);

HZ_FAST bool hz_lock_try(hz_lock *lock)
{
    uint32_t expected = 0;
    return hz_atomic_replace(&lock->word, &expected, 1);
}

HZ_FAST void hz_lock_take(hz_lock *lock)
{
    if (HZ_UNLIKELY(!hz_lock_try(lock))) hz_lock_wait(lock);
}

HZ_FAST void hz_lock_release(hz_lock *lock)
{
    if (HZ_UNLIKELY(hz_atomic_swap(&lock->word, 0) == 2)) hz_lock_wake(lock);
}

/* ---- pages.c: the page heap ----------------------------------------------------------------- */

/* A run of `pages` pages whose first is a multiple of `align` (a power of two); NULL when there is
 * no memory. `zeroed` says whether it reads as zero; it is NULL for who does not care: then a part
 * of the run may be resident. */
hz_span *hz_pages_alloc(size_t pages, size_t align, bool *zeroed);
void hz_pages_free(hz_span *run);
/* Grows or shrinks a run in place; false when it cannot grow. */
bool hz_pages_resize(hz_span *run, size_t pages);
/* Returns to the system what has been unused for purge_delay_ms, or everything. */
void hz_pages_purge_old(void);
bool hz_pages_purge_all(void);
size_t hz_pages_free_bytes(void);
void hz_pages_fork_lock(void);
void hz_pages_fork_unlock(void);

/* ---- span.c: spans and bins ----------------------------------------------------------------- */

/*
 * Puts up to `want` free blocks into `out`; returns how many. With a lease, only blocks that had
 * come back: when there are none, an empty lease gets the uncut end of a span.
 */
size_t hz_span_take(uint32_t shard, uint32_t class_, void **out, size_t want, hz_lease *lease);
/* Cuts up to `want` blocks from a lease; returns how many. */
size_t hz_span_cut(hz_lease *lease, uint32_t class_, void **out, size_t want);
/* Takes back what is left of a lease. */
void hz_span_end_lease(uint32_t shard, uint32_t class_, hz_lease *lease);
/* Takes back blocks of one class and one shard. */
void hz_span_give(uint32_t shard, uint32_t class_, void *const *blocks, size_t count);
/* Gives up the spans that are kept though entirely free; false when there are none. */
bool hz_span_trim(uint32_t shard, uint32_t class_);
/* Bytes of all blocks that were cut and whose span is still one. */
size_t hz_span_bytes(void);
/* The span that `address` lies in. */
hz_span *hz_span_of(const void *address);

/* ---- large.c -------------------------------------------------------------------------------- */

/* `zeroed` as of hz_pages_alloc. */
void *hz_large_alloc(size_t size, size_t align, bool *zeroed);
void hz_large_free(void *block);
bool hz_large_resize(void *block, size_t size);
size_t hz_large_bytes(const void *block);

/* ---- depot.c -------------------------------------------------------------------------------- */

extern hz_shard *hz_shards;

/* Up to `want` blocks from the depot, else from the spans below it, or the heap's lease of one
 * (NULL: it has none); returns how many, 0 when there is no memory. */
size_t hz_depot_take(uint32_t shard, uint32_t class_, void **out, size_t want, hz_lease *lease);
/* Gives blocks to the depot; what it cannot hold goes on to the spans. */
void hz_depot_give(uint32_t shard, uint32_t class_, void *const *blocks, size_t count);
/* Gives a depot that ran dry a batch of its spans' blocks; returns how many. */
size_t hz_depot_top_up(uint32_t shard, uint32_t class_);
/* Moves everything that the depots hold to the spans. */
void hz_depot_trim(void);
/* Moves to the spans half of what a depot has held since the last call and nobody asked for, and
 * gives up the empty spans that are kept for it; false when there is nothing. */
bool hz_depot_decay(uint32_t shard, uint32_t class_);
bool hz_depot_make_all(void);

/* ---- magazine.c ----------------------------------------------------------------------------- */

bool hz_magazine_make_all(hz_heap *heap);
/* Pops a block of `class_`, of a refill if need be; NULL when there is no memory. */
void *hz_magazine_pop(hz_heap *heap, uint32_t class_);
/* Makes room in the magazine of `class_`, by growth or by a flush, and pushes `block`. */
void hz_magazine_make_room(hz_heap *heap, uint32_t class_, void *block);
void hz_magazine_flush_all(hz_heap *heap);

HZ_FAST void hz_magazine_push(hz_heap *heap, uint32_t class_, void *block)
{
    hz_stack *stack = hz_stack_of(heap, class_);
    if (HZ_UNLIKELY(*stack->top == NULL)) {
        hz_magazine_make_room(heap, class_, block);
        return;
    }
    *stack->top++ = block;
}

/* ---- remote.c ------------------------------------------------------------------------------- */

bool hz_remote_make(hz_heap *heap);
/* Collects a block of another shard. */
void hz_remote_push(hz_heap *heap, uint32_t class_, void *block);
void hz_remote_flush(hz_heap *heap);
/* Sorts blocks that the heap's shard was handed into its depots. */
void hz_remote_drain_inbox(hz_heap *heap);

/* ---- heap.c --------------------------------------------------------------------------------- */

/* The thread's heap, made at need; &hz_heap_none when the thread can have none (it is ending, or no
 * memory). */
hz_heap *hz_heap_enter(void);
hz_heap *hz_heap_first(void);
/* Heaps that have a thread; at least 1. */
uint32_t hz_heap_count(void);
/* Empties the heaps of threads that ended a while ago. */
void hz_heap_cool_old(void);
/* Moves to the spans what the depots hold, and the heaps of threads that ended. */
void hz_trim_shared(void);
void hz_heap_start(uint32_t cpus);

/* ---- free.c ------------------------------------------------------------------------------------
 */

/* Looks the thread's deferred frees up. */
void hz_free_deferred(hz_heap *heap);

/* ---- start.c -------------------------------------------------------------------------------- */

/* Makes hz ready: configuration, arena, hooks. Idempotent; false when there is no memory to start
 * with. */
bool hz_start(void);
_Noreturn void hz_die(const char *what, const void *address);
void hz_warn_once(const char *what, const void *address);

/* ---- decay.c -------------------------------------------------------------------------------- */

/* On slow paths: every so often lets something decay. */
void hz_tick(hz_heap *heap);
/* Lets a part of what is due decay; false when nothing is. */
bool hz_decay(void);
void hz_decay_fork_lock(void);
void hz_decay_fork_unlock(void);

/* ---- background.c --------------------------------------------------------------------------- */

void hz_background_start(void);

/* ---- stats.c -------------------------------------------------------------------------------- */

/* With HZ_STATS_COUNTERS=OFF nothing is counted but what hz itself reads (hz_usage_now). */
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

void hz_stats_dump(const char *path_pattern);

#pragma GCC visibility pop

#endif
