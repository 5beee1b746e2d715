/*
 * START HERE: allocation, the fast path first. A pop takes the block; it is in pop.h.
 */
#include <hz/hz.h>

#include <errno.h>

#include "internal.h"
#include "pop.h"

static void *class_alloc_slow(const hz_stack *stack);
static void *alloc_slow(size_t size, size_t align);

HZ_FAST void *stack_alloc(size_t at)
{
    hz_stack *stack = hz_stack_at(hz_home_row_mine, at);
    void *block = hz_stack_pop(stack);
    return HZ_LIKELY(block != NULL) ? block : class_alloc_slow(stack);
}

HZ_FAST void *class_alloc(uint32_t class_)
{
    return stack_alloc(HZ_STACK_OFFSET(class_));
}

void *hz_malloc(size_t size)
{
    if (HZ_LIKELY(size <= hz_map.small_max_bytes)) return stack_alloc(hz_small_stack(size));
    if (HZ_UNLIKELY(size > hz_map.class_max_bytes)) return alloc_slow(size, HZ_GRANULE_BYTES);
    /* a medium one; a small one if another thread started hz between the two ifs */
    return class_alloc(hz_class_of(size));
}

/* ---- slow allocation ------------------------------------------------------------------------ */

/* Before hz has started, and under hardening=full: no request takes a fast path (see
 * hz_fast_path_open in harden.c). */
static bool is_fast_path_closed(void)
{
    return hz_map.class_max_bytes == 0;
}

/* For a thread without a heap: one block from the depot. */
static void *take_one(uint32_t class_)
{
    void *block;
    uint32_t shard = 0;
    return hz_depot_take(shard, class_, &block, 1, NULL) == 1 ? block : NULL;
}

static void *class_alloc_any(uint32_t class_)
{
    hz_heap *heap = hz_heap_mine;
    if (heap == &hz_heap_none) heap = hz_heap_enter();
    if (HZ_UNLIKELY(heap->astray >= HZ_ASTRAY)) heap = hz_heap_follow();
    if (!hz_start()) return NULL;
    return heap == &hz_heap_none ? take_one(class_) : hz_magazine_pop(heap, class_);
}

static void *class_alloc_once(uint32_t class_)
{
    void *block;
    while ((block = class_alloc_any(class_)) != NULL && !hz_is_sealed(block, hz_map.keys[class_]))
        hz_leave_out(block);
    return block;
}

/* Without memory it trims what no other thread holds, and tries again; then for as long as the
 * program's hook wants that. */
void *hz_class_alloc_retrying(uint32_t class_)
{
    void *block = class_alloc_once(class_);
    for (bool is_second = false; block == NULL && hz_start(); is_second = true) {
        hz_trim_in_need(is_second);
        block = class_alloc_once(class_);
        if (block != NULL || !hz_may_get_memory(hz_class_bytes[class_])) break;
    }
    if (block == NULL)
        errno = ENOMEM;
    else
        hz_unseal(block);
    return block;
}

/* malloc(0). It has a class once hz has started, except under hardening. */
static void *alloc_nothing(void)
{
    if (!hz_start()) return NULL;
    if (!hz_is_hardened()) return hz_malloc(0);
    void *block = hz_guard_zero();
    if (block == NULL) errno = ENOMEM;
    return block;
}

HZ_SLOW static void *class_alloc_slow(const hz_stack *stack)
{
    const uint32_t class_ = (uint32_t)(stack - hz_home_row_mine);
    return class_ == HZ_CLASS_NONE ? alloc_nothing() : hz_class_alloc_retrying(class_);
}

void *hz_large_alloc_retrying(size_t size, size_t align, bool *zeroed)
{
    void *block = NULL;
    if (size <= PTRDIFF_MAX && align <= PTRDIFF_MAX / 2 && hz_start()) {
        block = hz_large_alloc(size, align, zeroed);
        for (bool is_second = false; block == NULL; is_second = true) {
            hz_trim_in_need(is_second);
            block = hz_large_alloc(size, align, zeroed);
            if (block != NULL || !hz_may_get_memory(size)) break;
        }
    }
    if (block == NULL) errno = ENOMEM;
    return block;
}

static void *alloc_while_closed(size_t size, size_t align)
{
    if (!hz_start()) {
        errno = ENOMEM;
        return NULL;
    }
    if (hz_is_fenced()) return hz_harden_alloc(size, align);
    return hz_aligned_alloc(align, size);
}

HZ_SLOW static void *alloc_slow(size_t size, size_t align)
{
    if (is_fast_path_closed()) return alloc_while_closed(size, align);
    return hz_large_alloc_retrying(size, align, NULL);
}

/* ---- zeroed --------------------------------------------------------------------------------- */

static void *calloc_large(size_t size)
{
    bool zeroed;
    void *block = hz_large_alloc_retrying(size, HZ_GRANULE_BYTES, &zeroed);
    if (block != NULL && !zeroed) memset(block, 0, hz_large_bytes(block));
    return block;
}

/* Zeroes all usable bytes, as glibc does. */
void *hz_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (HZ_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) {
        errno = ENOMEM;
        return NULL;
    }
    if (bytes > HZ_CLASS_MAX_BYTES && !is_fast_path_closed()) return calloc_large(bytes);
    void *block = hz_malloc(bytes);
    if (HZ_UNLIKELY(block == NULL || hz_is_fenced())) return block;
    const bool is_large = bytes > HZ_CLASS_MAX_BYTES;
    return memset(block, 0, is_large ? hz_large_bytes(block) : hz_class_bytes[hz_class_of(bytes)]);
}

/* ---- aligned -------------------------------------------------------------------------------- */

/* The smallest class that serves, or HZ_CLASS_NONE. From 1 KiB on, blocks of sized classes are
 * aligned to cache lines at most. */
uint32_t hz_class_aligned(size_t align, size_t size)
{
    size_t larger = size > align ? size : align;
    uint32_t class_ = HZ_SIZED_CLASSES + 1;
    if (align <= HZ_CACHE_LINE_BYTES && size <= HZ_CLASS_MAX_BYTES)
        class_ = hz_class_of(larger);
    else if (larger > HZ_PAGE_BYTES)
        return HZ_CLASS_NONE;
    while (hz_class_bytes[class_] < larger || (hz_class_bytes[class_] & (align - 1)) != 0) class_++;
    return class_;
}

void *hz_aligned_alloc(size_t align, size_t size)
{
    if (HZ_UNLIKELY(align == 0 || (align & (align - 1)) != 0)) {
        errno = EINVAL;
        return NULL;
    }
    if (align <= HZ_GRANULE_BYTES) return hz_malloc(size);
    if (HZ_UNLIKELY(is_fast_path_closed())) return alloc_slow(size, align);
    const uint32_t class_ = hz_class_aligned(align, size);
    return class_ != HZ_CLASS_NONE ? class_alloc(class_) : alloc_slow(size, align);
}

void *hz_memalign(size_t align, size_t size)
{
    size_t power = HZ_GRANULE_BYTES;
    if (align > SIZE_MAX / 2 + 1) { /* there is no such power */
        errno = EINVAL;
        return NULL;
    }
    while (power < align) power *= 2;
    return hz_aligned_alloc(power, size);
}

int hz_posix_memalign(void **block, size_t align, size_t size)
{
    if (align < sizeof(void *) || (align & (align - 1)) != 0) return EINVAL;
    const int saved = errno;
    void *fresh = hz_aligned_alloc(align, size);
    if (fresh == NULL) return ENOMEM; /* errno says so, too, as with glibc */
    errno = saved;
    *block = fresh;
    return 0;
}

/* ---- resized -------------------------------------------------------------------------------- */

/* After a large block gave pages back, as after a free. */
static void tick_keeping_errno(void)
{
    const int saved = errno;
    hz_tick_of_free(hz_heap_mine);
    errno = saved;
}

static bool large_resize_in_place(void *block, size_t have, size_t size)
{
    if (!hz_large_resize(block, size)) return false;
    if (hz_large_bytes(block) < have) tick_keeping_errno();
    return true;
}

static void *large_move_and_tick(void *block, size_t size)
{
    void *fresh = hz_large_move(block, size);
    if (fresh != NULL) tick_keeping_errno();
    return fresh;
}

/* Whether a block of `have` bytes may stay where it is: it is large enough, and at most twice as
 * large as needed. */
static bool resize_in_place(void *block, size_t have, size_t size)
{
    if (hz_is_fenced()) return false;
    if (have > HZ_CLASS_MAX_BYTES)
        return size > HZ_CLASS_MAX_BYTES && large_resize_in_place(block, have, size);
    return size <= have && (size >= have / 2 || have <= HZ_GRANULE_BYTES * 4);
}

/* Whether a large block must grow; resize_in_place has failed. */
static bool grows_large(size_t have, size_t size)
{
    return have > HZ_CLASS_MAX_BYTES && size > have && !hz_is_fenced();
}

/* A realloc of a block. It has a frame of its own, which an allocation need not make. */
__attribute__((noinline)) static void *resize(void *block, size_t size)
{
    if (size == 0) {
        hz_free(block);
        return NULL;
    }
    const uint32_t class_ = hz_class_at(block);
    if (class_ != HZ_CLASS_NONE)
        hz_require_live(block, class_);
    else if (!hz_guard_is_zero(block))
        hz_die("realloc of a pointer that is no live block", block);
    if (size > PTRDIFF_MAX) {
        errno = ENOMEM;
        return NULL;
    }
    const size_t have = hz_usable_of(block, class_);
    if (resize_in_place(block, have, size)) return block;
    void *fresh = grows_large(have, size) ? large_move_and_tick(block, size) : NULL;
    if (fresh != NULL) return fresh;
    fresh = hz_malloc(size);
    if (fresh == NULL && grows_large(have, size))
        return hz_large_grow_at_last(block, size) ? block : NULL;
    if (fresh == NULL) return size <= have ? block : NULL;
    memcpy(fresh, block, size < have ? size : have);
    hz_free(block);
    return fresh;
}

/* Some programs allocate by realloc alone: Lua is one. */
void *hz_realloc(void *block, size_t size)
{
    return block == NULL ? hz_malloc(size) : resize(block, size);
}

HZ_DROP_IN_WITH(hz_override);
HZ_DROP_IN_WITH(hz_extensions);
HZ_DROP_IN_NAME(malloc, hz_malloc);
HZ_DROP_IN_NAME(__libc_malloc, hz_malloc);
HZ_DROP_IN_NAME(calloc, hz_calloc);
HZ_DROP_IN_NAME(__libc_calloc, hz_calloc);
HZ_DROP_IN_NAME(realloc, hz_realloc);
HZ_DROP_IN_NAME(__libc_realloc, hz_realloc);
