/*
 * Hardening: what the default leaves out, as it costs time or memory.
 *
 *     light   each free reads its block, so that a second free is seen at the call; a block that
 *             was written to after its free ends the program; malloc(0) may not be read or written;
 *             a size that comes with a free must be the block's
 *     full    light, and: blocks are zeroed when they are freed, and checked when they leave the
 *             quarantine and when they are handed out again; they are handed out in random order;
 *             fences behind blocks, those of neighbours too, are checked at each free (harden.h);
 *             spans and blocks of more than FULL_CLASS_MAX_BYTES lie between pages that may not be
 *             touched (guard.c)
 *
 * The default pays nothing: under `full` no size is small enough for the fast path of malloc
 * (hz_map.small_max_bytes), and under both no free finds room in its thread's rows (heap.c).
 */
#include <hz/hz.h>

#include <errno.h>

#include "harden.h"
#include "os.h"

/* Offset of the first byte behind a block's seal. */
enum { SEAL_END = 2 * sizeof(uint64_t) };

#define FULL_CLASS_MAX_BYTES ((size_t)128 << 10)

/* The state in a trailer: FREE, CHANGING, or the bytes asked for. */
#define STATE_FREE ((uint64_t)1 << 32)
#define STATE_CHANGING ((uint64_t)2 << 32)

static size_t block_bytes(uint32_t class_)
{
    return hz_class_bytes[class_];
}

static uint64_t *trailer_of(const void *block, uint32_t class_)
{
    const uintptr_t end = (uintptr_t)block + block_bytes(class_);
    return (uint64_t *)(end - HZ_TRAILER_BYTES);
}

/* Two odd numbers whose product is 1 modulo 2^64. A trailer holds a state times SPREAD. If one byte
 * of that changes, the state that is read back is off by more than 2^52, so it is no valid one. */
#define SPREAD UINT64_C(0x9e3779b97f4a7c15)
#define GATHER UINT64_C(0xf1de83e19937733d)

_Static_assert(SPREAD *GATHER == 1, "a state that was spread can be gathered");
_Static_assert(FULL_CLASS_MAX_BYTES < STATE_FREE, "no size that was asked for is another state");
_Static_assert((int)HZ_EDGE_BYTES <= (int)HZ_CACHE_LINE_BYTES,
               "the least colour of a span has room for the fence before its first block");

/* The key is rotated, so that a trailer does not reveal a seal. */
static uint64_t mask_of(const void *block, uint32_t class_)
{
    const uint64_t key = hz_map.keys[class_];
    return (key << 29 | key >> 35) ^ (uintptr_t)block * SPREAD;
}

static uint64_t state_mixed(const void *block, uint32_t class_, uint64_t state)
{
    return mask_of(block, class_) ^ state * SPREAD;
}

/* In order with the writes before it, as other threads may check the block meanwhile. */
static void state_set(void *block, uint32_t class_, uint64_t state)
{
    hz_plain_put(trailer_of(block, class_), state_mixed(block, class_, state));
}

static uint64_t state_of(const void *block, uint32_t class_)
{
    return (hz_plain_get(trailer_of(block, class_)) ^ mask_of(block, class_)) * GATHER;
}

static bool is_live_state(uint64_t state, uint32_t class_)
{
    return state <= block_bytes(class_) - HZ_EDGE_BYTES;
}

/* ---- checks --------------------------------------------------------------------------------- */

/* Whether the end of a block is as its state says. Another thread may own the block and change it
 * meanwhile: then the result is true. */
__attribute__((no_sanitize("thread"))) static bool is_small_end_whole(const unsigned char *block,
                                                                      uint32_t class_)
{
    const uint64_t state = state_of(block, class_);
    const size_t end = block_bytes(class_) - HZ_TRAILER_BYTES;
    if (state == STATE_CHANGING) return true;
    if (state != STATE_FREE && !is_live_state(state, class_)) return false;
    const unsigned char byte = state == STATE_FREE ? 0 : hz_fence_byte(class_);
    const size_t fence = end - HZ_FENCE_BYTES < SEAL_END ? SEAL_END : end - HZ_FENCE_BYTES;
    if (hz_is_all(block + fence, end - fence, byte)) return true;
    return state_of(block, class_) != state;
}

/* The same for the block below; for a span's first block, for the bytes before it. */
static bool is_below_whole(const unsigned char *block, uint32_t class_)
{
    const unsigned char *first = hz_span_first_block(block);
    if (block != first) return is_small_end_whole(block - block_bytes(class_), class_);
    if ((uintptr_t)block % HZ_PAGE_BYTES == 0) return true; /* a page that may not be touched */
    return hz_is_all(block - HZ_EDGE_BYTES, HZ_EDGE_BYTES, hz_fence_byte(class_));
}

static void require_whole(const unsigned char *block, uint32_t class_, size_t asked)
{
    const size_t end = block_bytes(class_) - HZ_TRAILER_BYTES;
    if (!hz_is_all(block + asked, end - asked, hz_fence_byte(class_)))
        hz_die("a block was written to beyond its end", block);
    if (!is_below_whole(block, class_) && !is_below_whole(block, class_))
        hz_die("the bytes before a block were written to", block);
}

/* The bytes that were asked for; ends the program for a free block or a changed trailer. */
static size_t require_live_state(const void *block, uint32_t class_)
{
    const uint64_t state = state_of(block, class_);
    if (state == STATE_FREE) hz_die("a block was freed twice", block);
    if (!is_live_state(state, class_)) hz_die("a block was written to beyond its end", block);
    return (size_t)state;
}

/* Ends the program unless a free block is as its free has left it. The block has no seal just now:
 * the seal was not written yet, or it was removed. */
static void require_untouched(const unsigned char *block, uint32_t class_)
{
    const size_t end = block_bytes(class_) - HZ_TRAILER_BYTES;
    if (!hz_is_all(block, end, 0) || state_of(block, class_) != STATE_FREE)
        hz_die("a block was written to after it had been freed", block);
}

/* Whether the fences of the block that this thread got last are whole. True also where another
 * thread has freed it: then its page has another class, or its trailer another state. */
__attribute__((no_sanitize("thread"))) static bool is_latest_whole(const unsigned char *block)
{
    const uint32_t class_ = hz_class_at(block);
    if (class_ == HZ_CLASS_NONE) return true;
    if (class_ == HZ_CLASS_LARGE) return hz_guard_is_whole(block);
    const uint64_t state = state_of(block, class_);
    const size_t end = block_bytes(class_) - HZ_TRAILER_BYTES;
    if (!is_live_state(state, class_))
        return state == STATE_FREE || state == STATE_CHANGING || hz_class_at(block) != class_;
    if (hz_is_all(block + state, end - state, hz_fence_byte(class_)))
        return is_below_whole(block, class_);
    return state_of(block, class_) != state || hz_class_at(block) != class_;
}

/* Notices an overrun at the thread's next call, not only when the block is freed. The lock keeps
 * the block's span, as another thread may have freed the block. A signal handler that interrupts
 * this finds the lock held and does not check. A block that another thread is changing may look
 * broken once: it is checked twice. */
static void check_latest(hz_heap *heap)
{
    const void *latest = heap->latest;
    if (latest == NULL || !hz_lock_try(&heap->looking)) return;
    const bool is_whole = is_latest_whole(latest) || is_latest_whole(latest);
    hz_lock_release(&heap->looking);
    if (!is_whole) hz_die("the bytes around a block were written to", latest);
}

/* The span has no class any more, so checks that begin later find no block in it: waits for those
 * under way. */
void hz_harden_span_goes(void)
{
    for (hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next) {
        if (heap == hz_heap_mine) continue;
        hz_lock_take(&heap->looking);
        hz_lock_release(&heap->looking);
    }
}

/* ---- quarantine ----------------------------------------------------------------------------- */

static uint64_t draw(hz_heap *heap)
{
    uint64_t *state = &heap->random;
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Puts a block where it can be handed out again. */
static void release(hz_heap *heap, void *block)
{
    const uint32_t class_ = hz_class_at(block);
    require_untouched(block, class_);
    hz_seal(block, hz_map.keys[class_]);
    hz_free_to_heap(heap, class_, block);
}

/* Puts a block into the quarantine; a random one leaves. */
static void quarantine(hz_heap *heap, void *block)
{
    if (heap->quarantine == NULL) { /* a thread without a heap */
        release(heap, block);
        return;
    }
    void **place = &heap->quarantine[draw(heap) % (uint64_t)hz_cfg.quarantine_blocks];
    void *leaving = *place;
    *place = block;
    if (leaving != NULL) release(heap, leaving);
}

bool hz_quarantine_make(hz_heap *heap)
{
    if (!hz_is_fenced()) return true;
    hz_os_random(&heap->random, sizeof heap->random);
    heap->quarantine = hz_meta_alloc((size_t)hz_cfg.quarantine_blocks * sizeof(void *));
    return heap->quarantine != NULL;
}

void hz_quarantine_empty(hz_heap *heap)
{
    for (int64_t i = 0; heap->quarantine != NULL && i < hz_cfg.quarantine_blocks; i++) {
        void *leaving = heap->quarantine[i];
        heap->quarantine[i] = NULL;
        if (leaving != NULL) release(heap, leaving);
    }
}

/* ---- full: allocating and freeing ----------------------------------------------------------- */

void hz_harden_cut(void *block, uint32_t class_)
{
    if (block == hz_span_first_block(block) && (uintptr_t)block % HZ_PAGE_BYTES != 0)
        memset((unsigned char *)block - HZ_EDGE_BYTES, hz_fence_byte(class_), HZ_EDGE_BYTES);
    memset(block, 0, block_bytes(class_));
    state_set(block, class_, STATE_FREE);
}

static void *block_prepare(unsigned char *block, uint32_t class_, size_t asked)
{
    ((uint64_t *)(void *)block)[1] = 0; /* the seal's place */
    require_untouched(block, class_);
    state_set(block, class_, STATE_CHANGING);
    memset(block + asked, hz_fence_byte(class_), block_bytes(class_) - HZ_TRAILER_BYTES - asked);
    state_set(block, class_, asked);
    return block;
}

static void *alloc_fenced(hz_heap *heap, size_t size, size_t align)
{
    if (size > PTRDIFF_MAX - HZ_EDGE_BYTES) {
        errno = ENOMEM;
        return NULL;
    }
    const size_t larger = size + HZ_EDGE_BYTES > align ? size + HZ_EDGE_BYTES : align;
    const uint32_t class_ =
        larger > FULL_CLASS_MAX_BYTES ? HZ_CLASS_NONE : hz_class_aligned(align, larger);
    if (class_ == HZ_CLASS_NONE) return hz_guard_alloc(size, align);
    if (heap->random != 0) hz_magazine_shuffle(heap, class_, draw(heap));
    void *block = hz_class_alloc_retrying(class_);
    return block != NULL ? block_prepare(block, class_, size) : NULL;
}

void *hz_harden_alloc(size_t size, size_t align)
{
    hz_heap *heap = hz_heap_entered();
    check_latest(heap);
    void *block = alloc_fenced(heap, size, align);
    if (heap != &hz_heap_none) heap->latest = block;
    return block;
}

/* If two threads free a block at once, one of them ends the program. */
static void state_change(void *block, uint32_t class_, uint64_t from)
{
    uint64_t before = state_mixed(block, class_, from);
    const uint64_t after = state_mixed(block, class_, STATE_CHANGING);
    if (!hz_plain_replace(trailer_of(block, class_), &before, after))
        hz_die("a block was freed twice", block);
}

static void free_small(hz_heap *heap, void *block, uint32_t class_)
{
    const size_t asked = require_live_state(block, class_);
    require_whole(block, class_, asked);
    state_change(block, class_, asked);
    memset(block, 0, block_bytes(class_) - HZ_TRAILER_BYTES);
    state_set(block, class_, STATE_FREE);
    quarantine(heap, block);
}

void hz_harden_free(void *block, uint32_t class_)
{
    hz_heap *heap = hz_heap_entered();
    if (class_ == HZ_CLASS_LARGE)
        hz_guard_free(block);
    else
        free_small(heap, block, class_);
    check_latest(heap);
}

size_t hz_harden_usable_size(const void *block, uint32_t class_)
{
    return class_ == HZ_CLASS_LARGE ? hz_guard_asked(block) : require_live_state(block, class_);
}

/* Whether `size` may be a block's size: it may have been resized in place. A block with a larger
 * alignment may be much larger than its size. */
static bool may_be_size(size_t size, size_t usable, uint32_t class_)
{
    const bool is_sized = class_ <= HZ_SIZED_CLASSES && usable > (size_t)4 * HZ_GRANULE_BYTES;
    return size <= usable && (!is_sized || size >= usable / 2);
}

/* The size must be what was asked for if that is known, else what may have been. */
void hz_harden_require_size(const void *block, size_t size)
{
    const uint32_t class_ = hz_class_at(block);
    if (class_ == HZ_CLASS_NONE) return; /* the free itself reports it */
    const size_t usable = hz_usable_size(block);
    const bool is_known = hz_is_fenced();
    if (is_known ? size != usable : !may_be_size(size, usable, class_))
        hz_die("a free with a size that is not the block's", block);
}

/* Opens the fast path of malloc and operator new, except under `full`; gives malloc(0) a class,
 * except under hardening. */
void hz_fast_path_open(void)
{
    if (!hz_is_hardened()) hz_small_stacks[0] = HZ_STACK_OFFSET(1);
    if (hz_is_fenced()) return;
    hz_map.class_max_bytes = HZ_CLASS_MAX_BYTES;
    hz_map.small_max_bytes = HZ_SMALL_MAX_BYTES;
}
