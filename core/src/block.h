/*
 * Where blocks start: what an address tells of the block there, without a look into the block.
 *
 * Each page has an entry of two words. The free of a block asks one question of it, which the words
 * answer with a multiplication: is this where a block starts, one that was cut already? Included by
 * internal.h only.
 */
#ifndef HZ_BLOCK_H
#define HZ_BLOCK_H

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
 * entries. */
HZ_FAST hz_page *hz_page_at(const void *address)
{
    const uintptr_t at = hz_atomic_and(&hz_map.page_mask,
                                       (uintptr_t)address >> (HZ_PAGE_SHIFT - HZ_PAGE_ENTRY_SHIFT));
    return (hz_page *)(void *)((unsigned char *)hz_map.pages + at);
}

/*
 * How far an address is from the last block that was cut in its page, so that one comparison tells
 * whether a block starts there. All is modulo 2^64. Blocks have n bytes, and `last` is the last
 * one:
 *
 *     step      -(2^64 / n + slope), where HZ_SLOPE <= slope < 3 * HZ_SLOPE: the lowest 16 bits of
 *               the step are free for the shard and the class
 *     origin    -(last * step)
 *     distance  origin + address * step  =  (last - address) * (2^64 / n + slope)
 *
 *       address                               distance
 *       i blocks below the last               i * n * slope: below HZ_DISTANCE_MAX
 *       above the last                        nearly 2^64
 *       between two blocks                    at least 2^64 / n less HZ_DISTANCE_MAX
 *       so far away that it only shares
 *       the entry                             at least 2^47, but for one address in 2^17
 *
 * tests/core/block_starts.c tries every granule of every class.
 */
HZ_FAST uint64_t hz_distance(const hz_page *page, uint64_t step, const void *address)
{
    return hz_atomic_plus(&page->origin, (uintptr_t)address * step);
}

#define HZ_SLOPE ((uint64_t)33 << 10)
#define HZ_DISTANCE_MAX ((uint64_t)1 << 38)

/*
 * Writes the entry of a page in which the last block that was cut starts at `last`. A free at the
 * same time asks the page of its own block, so the step stays, and both the old origin and the new
 * one tell of a block that was cut before. A free of what is no live block may read the entry of a
 * page that gets another class: it never combines a new step with an old origin, as the step is
 * written last, read first, and cleared alone; it may combine an old step with a new origin, and
 * then passes by chance, one time in 2^17 (tests/model).
 */
HZ_FAST void hz_page_set(hz_page *page, uint64_t step, const void *last)
{
    hz_atomic_poke(&page->origin, -((uintptr_t)last * step));
    hz_atomic_put(&page->step, step);
}

/* The entry of a page in which no block was cut. */
HZ_FAST void hz_page_clear(hz_page *page)
{
    hz_atomic_put(&page->step, 0);
}

/* The same; true for one of those that do it at once. */
HZ_FAST bool hz_page_take(hz_page *page)
{
    return hz_atomic_swap(&page->step, 0) != 0;
}

/* Whether a block was cut there. */
HZ_FAST bool hz_is_start(const hz_page *page, const void *address)
{
    const uint64_t step = hz_atomic_peek(&page->step);
    return step != 0 && hz_distance(page, step, address) < HZ_DISTANCE_MAX;
}

/* Where in a thread's rows the stack lies that a step tells, in bytes. */
HZ_FAST size_t hz_step_stack(uint64_t step)
{
    return (uint16_t)step;
}

/*
 * The class of the block that starts at `block`, be it live or free; HZ_CLASS_NONE when none does.
 * Below the first block of a span lie some bytes that belong to no block, and of which the entry
 * knows nothing: the span does.
 */
HZ_FAST uint32_t hz_class_at(const void *block)
{
    if (hz_granule_of(block) >= hz_atomic_peek(&hz_map.granules)) return HZ_CLASS_NONE;
    if (!hz_is_start(hz_page_at(block), block)) return HZ_CLASS_NONE;
    const hz_span *page = &hz_map.spans[hz_page_of(block)];
    const bool is_below_first =
        page->class_ != HZ_CLASS_LARGE && (uintptr_t)block % HZ_PAGE_BYTES < page->colour;
    return is_below_first ? HZ_CLASS_NONE : page->class_;
}

#endif
