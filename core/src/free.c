/*
 * Freeing: one path for a block of the thread's own shard, whatever the number of shards, then
 * everything else.
 *
 * The entry of the block's page tells where the block belongs: the shard and the class name a stack
 * in the thread's rows. The entry also tells whether a block starts there. One comparison checks
 * that and whether the magazine has room. It compares the block's remainder (block.h) with the slot
 * of the magazine that the push will overwrite; only a branch depends on the result:
 *
 *     what lies in the slot                                the comparison
 *     an address of the arena: of a block that was         a block's remainder is below it, all
 *     popped earlier or, if there was none, the            other remainders are above it (see
 *     arena's first (set_grown in magazine.c)              COLOUR and FAR in block.h)
 *     NULL: the magazine is full, or of another shard      no remainder is below it
 *
 * A free of NULL takes the slow path: its page's entry names the stack of no class, which is full.
 *
 * A block of another shard takes the slow path, too, but for its ring the same facts are enough.
 *
 * The block's seal is written and not read. A read of a block that has left the caches would keep
 * the free from retiring, while a write waits in the store buffer. So a second free is noticed when
 * the block would be handed out again. With double_free=at_call the thread's rows are full for all
 * classes, and each free takes the slow path, which reads the seal.
 */
#include <hz/hz.h>

#include <errno.h>

#include "internal.h"

static void free_slow(void *block, hz_stack *stack, uint64_t remainder);
static void free_sized_slow(void *block, hz_stack *stack, uint64_t remainder, size_t size);

/* Whether there is room at the top, and a block starts where the remainder is taken from: the slot
 * holds an address, which is more than any remainder of a start, or 0. */
HZ_FAST bool slot_admits(void *const *top, uint64_t remainder)
{
    return remainder < (uintptr_t)*top;
}

/* Puts a block into its magazine. False when it is not admitted or, if `reads`, when the block has
 * its seal already. */
HZ_FAST bool put(hz_stack *stack, void *block, uint64_t remainder, bool reads)
{
    void **top = stack->top;
    if (HZ_UNLIKELY(!slot_admits(top, remainder))) return false;
    if (reads && HZ_UNLIKELY(hz_is_sealed(block, stack->key))) return false;
    hz_seal(block, stack->key);
    *top = block;
    hz_plain_put(&stack->top, top + 1); /* after the slot: hz_magazine_holds */
    return true;
}

HZ_FAST void free_any(void *block, bool is_sized, size_t size)
{
    const hz_page_entry *entry = hz_entry_at(block);
    const uint64_t step = hz_atomic_peek(&entry->step);
    hz_stack *stack = hz_stack_at(hz_rows_mine, hz_step_stack(step));
    const uint64_t remainder = hz_remainder(entry, step, block);
    if (HZ_LIKELY(put(stack, block, remainder, false))) return;
    if (is_sized)
        free_sized_slow(block, stack, remainder, size);
    else
        free_slow(block, stack, remainder);
}

void hz_free(void *block)
{
    free_any(block, false, 0);
}

void hz_free_sized(void *block, size_t size)
{
    free_any(block, true, size);
}

/* ---- the slow paths -------------------------------------------------------------------------- */

/* The class of a live block; HZ_CLASS_NONE for a malloc(0), which is free then. Ends the program
 * for anything else. */
static uint32_t class_to_free(void *block)
{
    const uint32_t class_ = hz_class_at(block);
    if (HZ_UNLIKELY(class_ == HZ_CLASS_NONE)) {
        if (hz_guard_zero_free(block)) return HZ_CLASS_NONE;
        hz_die(hz_granule_of(block) >= hz_atomic_peek(&hz_map.granules)
                   ? "free of a pointer that hz did not allocate"
                   : "free of a pointer that is no live block (freed twice?)",
               block);
    }
    hz_require_live(block, class_);
    return class_;
}

void hz_free_to_heap(hz_heap *heap, uint32_t class_, void *block)
{
    const uint32_t shard = hz_info_at(block)->shard;
    if (shard == heap->shard)
        hz_magazine_push(heap, class_, block);
    else
        hz_remote_push(heap, class_, shard, block);
}

/* Checks a block and puts it where it belongs. */
static void free_sorted(hz_heap *heap, void *block)
{
    const uint32_t class_ = class_to_free(block);
    if (class_ == HZ_CLASS_NONE) return;
    if (hz_is_fenced()) {
        hz_harden_free(block, class_);
    } else if (class_ == HZ_CLASS_LARGE) {
        hz_large_free(block, false);
        if (!hz_is_deferring()) hz_tick_of_free(heap);
    } else {
        hz_seal(block, hz_map.keys[class_]);
        if (hz_class_bytes[class_] > HZ_SMALL_MAX_BYTES) hz_magazine_hollow(heap, class_, block);
        hz_free_to_heap(heap, class_, block);
    }
}

void hz_free_deferred(hz_heap *heap)
{
    uint32_t count = heap->deferred_count;
    heap->deferred_count = 0;
    for (uint32_t i = 0; i < count; i++) free_sorted(heap, heap->deferred[i]);
}

bool hz_free_make(hz_heap *heap)
{
    if (!hz_is_deferring()) return true;
    heap->deferred = hz_meta_alloc((size_t)hz_cfg.defer_free * sizeof(void *));
    return heap->deferred != NULL;
}

static void free_defer(hz_heap *heap, void *block)
{
    heap->deferred[heap->deferred_count++] = block;
    if (heap->deferred_count < (uint32_t)hz_cfg.defer_free) return;
    hz_count(HZ_STAT_defer_batches, 1);
    hz_free_deferred(heap);
    hz_tick_of_free(heap); /* one for the large blocks of the batch */
}

/* So many frees of a thread that has no heap go to the depots. When a thread ends, the C library
 * may free what others had, behind the last moment at which a heap can be given up again. */
enum { LONE_FREES = 64 };
static _Thread_local uint32_t lone_frees __attribute__((tls_model("initial-exec")));

__attribute__((noinline)) static void free_elsewhere(void *block)
{
    int saved = errno;
    hz_heap *heap = hz_heap_mine;
    if (HZ_UNLIKELY(heap == &hz_heap_none) && ++lone_frees > LONE_FREES) heap = hz_heap_enter();
    if (HZ_UNLIKELY(heap->deferred != NULL))
        free_defer(heap, block);
    else
        free_sorted(heap, block);
    errno = saved;
}

/* Puts a block of another shard into the thread's ring: the stack that its page's entry names tells
 * class and shard, and the remainder whether a block starts there. Like the fast path it reads
 * neither the block nor the page's info. False when it is no such block. */
static bool free_abroad(void *block, const hz_stack *stack, uint64_t remainder)
{
    hz_heap *heap = hz_heap_mine;
    const size_t at = (size_t)((const char *)stack - (const char *)heap->rows);
    const uint32_t class_ = hz_step_class(at), shard = (uint32_t)(at / HZ_ROW_OFFSET(1));
    if (heap->ring == NULL || hz_rows_mine != heap->rows || shard == heap->shard) return false;
    if (class_ == HZ_CLASS_NONE || remainder >= HZ_REMAINDER_MAX) return false;
    hz_seal(block, stack->key);
    hz_remote_push(heap, class_, shard, block);
    return true;
}

/* With double_free=at_call all frees come here: `stack` is one that is always full. The block's
 * magazine, which mostly has room, lies hz_rows_away from it. */
__attribute__((noinline)) static void free_slow(void *block, hz_stack *stack, uint64_t remainder)
{
    const ptrdiff_t away = hz_rows_away;
    if (away != 0 && put(hz_stack_at(stack, (size_t)away), block, remainder, true)) return;
    if (block != NULL && !free_abroad(block, stack, remainder)) free_elsewhere(block);
}

/* The program says that it asked for `size` bytes. Only hardening checks that; under it the rows
 * never have room, so every free comes here. Apart, as it needs a frame and put() does not. */
__attribute__((noinline)) static void free_sized_slow(void *block, hz_stack *stack,
                                                      uint64_t remainder, size_t size)
{
    if (hz_is_hardened()) hz_harden_require_size(block, size);
    free_slow(block, stack, remainder);
}

/* ---- live or free --------------------------------------------------------------------------- */

/* A seal in the block is only a reason to search for it: the program may have stored it there. */
void hz_require_live(const void *block, uint32_t class_)
{
    if (class_ == HZ_CLASS_LARGE || !hz_is_sealed(block, hz_map.keys[class_])) return;
    if (hz_is_parked(block, class_)) hz_die("a block was freed twice", block);
}

size_t hz_usable_of(const void *block, uint32_t class_)
{
    if (hz_is_fenced() && class_ != HZ_CLASS_NONE) return hz_harden_usable_size(block, class_);
    return class_ == HZ_CLASS_LARGE ? hz_large_bytes(block) : hz_class_bytes[class_];
}

__attribute__((noinline)) static size_t usable_of_any(const void *block)
{
    return hz_usable_of(block, hz_class_at(block));
}

/* Redis asks for each block that it makes and frees. The entry of a short block's page names its
 * class: only then is the stack one that a block can lie in. */
size_t hz_usable_size(const void *block)
{
    const hz_page_entry *entry = hz_entry_at(block);
    const uint64_t step = hz_atomic_peek(&entry->step);
    const uint32_t class_ = hz_step_class(step);
    const bool is_start = hz_remainder(entry, step, block) < HZ_REMAINDER_MAX;
    if (HZ_LIKELY(is_start && class_ != HZ_CLASS_NONE && !hz_is_fenced()))
        return hz_class_bytes[class_];
    return usable_of_any(block);
}

HZ_DROP_IN_NAME(free, hz_free);
HZ_DROP_IN_NAME(__libc_free, hz_free);
HZ_DROP_IN_NAME(cfree, hz_free);
HZ_DROP_IN_NAME(malloc_usable_size, hz_usable_size);
