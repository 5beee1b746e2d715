/* clang-format off */
/*
 * Where blocks start: what a free learns from an address alone, without a look into the block.
 *
 * Each page (64 KiB) has an entry of two words, `origin` and `step`. All blocks of a page are of
 * one class and one shard, and are cut one after the other:
 *
 *     page   | colour | 1st block | 2nd block | 3rd block | not cut yet .......... |
 *                     ^ first                 ^ last
 *
 * The colour is a number of unused bytes before the first block of a span (see span.c).
 *
 *     step   | -(2^64 / n rounded down + slope), its higher 48 bits | the lowest 16 |
 *                                                                      ^ where in the thread's rows
 *                                                                        the stack of this shard
 *                                                                        and class is
 *     origin | -(last * step)                                                         |
 *
 * n is the bytes of a block. The slope is what the lowest 16 bits need, from about HZ_SLOPE on:
 * more than 2^15, less than 2^17.
 *
 * A free of `address` reads the entry of its page, and asks two questions:
 *
 *     which stack?             the lowest 16 bits of step: shard * 1024 + class * 16
 *     does a block start here? remainder = origin + address * step, modulo 2^64, is small
 *
 * Why that works: remainder = (last - address) * (2^64 / n rounded down + slope). For a block that
 * starts i blocks below the last one, last - address is i * n. If n divides 2^64, i * n * 2^64 / n
 * counts as zero, and i * n * slope is left; else i * (n * slope - 2^64 mod n), a little less. Any
 * other address leaves a fraction of 2^64.
 *
 * Why there is a slope: as it is above 0, addresses above `last` are negative (ABOVE). As it is
 * below 2^17, the longest span (2 MiB) stays below 2^38 (NEAR). As it is above 2^15, a page that
 * shares the entry is above any address of the arena even where n is a power of two (FAR): it is
 * 2^32 away where the arena ends below 2^47, as always on x86, and else 2^33 (settle in arena.c).
 * The play between NEAR and FAR frees 16 bits for the stack.
 *
 * A worked example: class 3, whose blocks have n = 48 bytes, in shard 2; the colour is 64 bytes,
 * and three blocks were cut. tests/core/block_starts.c computes each number of it.
 *
 *     which stack       0x0830                  2 * 1024 + 3 * 16
 *     step              0xfaaaaaaaaaaa0830      -(2^64 / 48 rounded down + slope), slope = 41595
 *     origin            0x881baaab4d8ae200      -(0x5000000100a0 * step)
 *
 *     address           remainder
 *     0x5000000100a0    0x0000000000000000      the 3rd block: 0 below the last
 *     0x500000010070    0x00000000001e7700      the 2nd block: about 48 * slope
 *     0x500000010040    0x00000000003cee00      the 1st block: about 96 * slope
 *     0x500000010050    0xaaaaaaaaaadd7100      within the 1st block: 80 / 48 of 2^64, so 2/3 of it
 *     0x5000000100d0    0xffffffffffe18900      not cut yet: below zero, so nearly 2^64
 *     0x500000010010    0x00000000005b6500      in the colour, 48 bytes below first: see COLOUR
 *     0x500200010040    0x55541060003cee00      another page that shares the entry
 *     seal              0x6b8b1567327a23b6      of the 2nd block, for the key 0x6b8b4567327b23c6
 *
 * A free compares the remainder with a word in the stack: an address of the arena, mostly of a
 * block that was popped from there. These lie between 2^38 and 2^48, so only starts of blocks pass
 * (the exceptions are at COLOUR and FAR). If the stack is full or of another shard, the word is
 * NULL: no remainder is below (free.c).
 *
 * Invariants, for a page that is in use:
 *
 *     NEAR      a block that was cut:      remainder < HZ_REMAINDER_MAX = 2^38 <= any address
 *     ABOVE     a block not cut yet:       remainder > 2^64 - 2^38
 *     BETWEEN   from first on, no start:   remainder >= 2^64 / n - 2^38. If n is at most
 *                                          HZ_SMALL_MAX_BYTES, that is above any address. The
 *                                          steps of longer blocks name the stack of no class, so
 *                                          that their frees take the slow path, which compares
 *                                          with HZ_REMAINDER_MAX
 *     COLOUR    i * n bytes below first:   remainder is small. The slow paths look at the colour
 *                                          (hz_class_at); those of free and of hz_usable_size that
 *                                          are fast let the address pass (SECURITY.md, promise 3)
 *     FAR       shares only the entry:     remainder >= the arena's end, except for one address in
 *                                          2^17 (2^16 above 2^47). No two pages of the arena in
 *                                          use share an entry
 *     TAG       a mark in the top byte:    remainder >= 2^56, where the processor ignores that
 *                                          byte (AArch64); else the write of the seal faults
 *     EMPTY     no block was cut:          step = 0, whose stack is of no class and always full.
 *                                          The entry of NULL is EMPTY: arena.c uses no page that
 *                                          has it
 *     ORDER     origin is written before step and read after it: see hz_entry_set
 */
/* clang-format on */
#ifndef HZ_BLOCK_H
#define HZ_BLOCK_H

#include "atomic.h"
#include "compiler.h"
#include "rows.h"
#include "types.h"

#pragma GCC visibility push(hidden)
extern hz_map_t hz_map;
#pragma GCC visibility pop

/* The node that a shard belongs to. */
static inline uint32_t hz_node_of(uint32_t shard)
{
    return shard % hz_map.nodes;
}

HZ_FAST void *hz_page_address(size_t page)
{
    return (void *)(hz_map.base + (page << HZ_PAGE_SHIFT));
}

HZ_FAST size_t hz_page_of(const void *address)
{
    return ((uintptr_t)address - hz_map.base) >> HZ_PAGE_SHIFT;
}

/* The info of the page that an address lies in; the page that an info is about, and its address. */
HZ_FAST hz_page_info *hz_info_at(const void *address)
{
    return &hz_map.infos[hz_page_of(address)];
}

HZ_FAST size_t hz_info_page(const hz_page_info *info)
{
    return (size_t)(info - hz_map.infos);
}

HZ_FAST void *hz_info_address(const hz_page_info *info)
{
    return hz_page_address(hz_info_page(info));
}

/* Puts a span or a run first into a list that is linked both ways. */
static inline void hz_info_link(hz_page_info **list, hz_page_info *info)
{
    info->previous = NULL;
    info->next = *list;
    if (info->next != NULL) info->next->previous = info;
    *list = info;
}

static inline void hz_info_unlink(hz_page_info **list, hz_page_info *info)
{
    if (info->next != NULL) info->next->previous = info->previous;
    if (info->previous != NULL)
        info->previous->next = info->next;
    else
        *list = info->next;
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
HZ_FAST hz_page_entry *hz_entry_at(const void *address)
{
    const uintptr_t at = hz_atomic_peek_and(
        &hz_map.entry_mask, (uintptr_t)address >> (HZ_PAGE_SHIFT - HZ_PAGE_ENTRY_SHIFT));
    return (hz_page_entry *)(void *)((unsigned char *)hz_map.entries + at);
}

/* Below HZ_REMAINDER_MAX if a block that was cut starts at the address (NEAR, above). */
HZ_FAST uint64_t hz_remainder(const hz_page_entry *entry, uint64_t step, const void *address)
{
    const uint64_t tag = (uintptr_t)address & HZ_TAG_BITS;
    return hz_atomic_peek_plus(&entry->origin, (uintptr_t)address * step) | tag;
}

#define HZ_SLOPE ((uint64_t)33 << 10)
#define HZ_SLOPE_MOST (HZ_SLOPE + UINT16_MAX) /* hz_class_step adds what the stack needs */
#define HZ_REMAINDER_MAX ((uint64_t)1 << 38)  /* no address of the arena is below it (arena.c) */

_Static_assert(sizeof(uintptr_t) == sizeof(uint64_t) && sizeof(size_t) == sizeof(uint64_t),
               "an address times a step is taken modulo 2^64");
_Static_assert(sizeof(hz_page_entry) == 1 << HZ_PAGE_ENTRY_SHIFT, "as hz_entry_at computes it");
_Static_assert(HZ_SPAN_BYTES_MAX <= HZ_REMAINDER_MAX / HZ_SLOPE_MOST, "NEAR, ABOVE");
_Static_assert(UINT64_MAX / HZ_SMALL_MAX_BYTES - HZ_REMAINDER_MAX >= HZ_ADDRESS_MAX, "BETWEEN");
_Static_assert(UINT64_MAX / HZ_CLASS_MAX_BYTES > 2 * HZ_REMAINDER_MAX, "BETWEEN, on the slow path");
/* The least remainder of an address by the entry of a page that lies `bytes` away (FAR). A size
 * that is a power of two has the least slope, HZ_SLOPE - 1. The last block that was cut may lie
 * nearer than the page, by the length of a span. */
#define HZ_REMAINDER_FAR(bytes) (((bytes)-HZ_SPAN_BYTES_MAX) * (HZ_SLOPE - 1))
_Static_assert(HZ_REMAINDER_FAR((uint64_t)1 << 32) >= HZ_ADDRESS_MAX / 2 &&
                   HZ_REMAINDER_FAR((uint64_t)1 << 33) >= HZ_ADDRESS_MAX,
               "FAR");

/*
 * Writes the entry of a page in which the last block that was cut starts at `last`. Frees may read
 * the entry at the same time.
 *
 * A free of a live block asks the page of its own block, whose step stays. By the old origin and by
 * the new one, each block that was cut before is NEAR. A thread that frees a block got its address
 * by some synchronisation with the thread that cut it, so it reads the origin of that cut or a
 * later one.
 *
 * A free of anything else may ask a page that gets another class. It never combines a new step with
 * an old origin, as the step is written last, read first and cleared alone. It may combine an old
 * step with a new origin; then it passes by chance, as rarely as at FAR (tests/model).
 */
HZ_FAST void hz_entry_set(hz_page_entry *entry, uint64_t step, const void *last)
{
    hz_atomic_poke(&entry->origin, -((uintptr_t)last * step));
    hz_atomic_put(&entry->step, step);
}

/* The entry of a page in which no block was cut. */
HZ_FAST void hz_entry_clear(hz_page_entry *entry)
{
    hz_atomic_put(&entry->step, 0);
}

/* The same, for threads that may do it at once: one of them gets true. */
HZ_FAST bool hz_entry_take(hz_page_entry *entry)
{
    return hz_atomic_swap(&entry->step, 0) != 0;
}

/* Whether a block that was cut starts at `address`. */
HZ_FAST bool hz_is_start(const hz_page_entry *entry, const void *address)
{
    const uint64_t step = hz_atomic_peek(&entry->step);
    return step != 0 && hz_remainder(entry, step, address) < HZ_REMAINDER_MAX;
}

/* Byte offset, in a thread's rows, of the stack that a step names. */
HZ_FAST size_t hz_step_stack(uint64_t step)
{
    return (uint16_t)step;
}

/* The class whose stack a step names; HZ_CLASS_NONE of an empty page and of long blocks. */
HZ_FAST uint32_t hz_step_class(uint64_t step)
{
    return (uint32_t)(hz_step_stack(step) % HZ_ROW_OFFSET(1) / HZ_STACK_OFFSET(1));
}

/*
 * The class of the block that starts at `block`, be it live or free; HZ_CLASS_NONE when none does.
 * The bytes before the first block of a span belong to no block. The entry cannot tell, but the
 * span's colour does. The fast paths do not ask it: see COLOUR.
 */
HZ_FAST uint32_t hz_class_at(const void *block)
{
    if (hz_granule_of(block) >= hz_atomic_peek(&hz_map.granules)) return HZ_CLASS_NONE;
    if (!hz_is_start(hz_entry_at(block), block)) return HZ_CLASS_NONE;
    const hz_page_info *info = hz_info_at(block);
    const bool is_below_first =
        info->class_ != HZ_CLASS_LARGE && (uintptr_t)block % HZ_PAGE_BYTES < info->colour;
    return is_below_first ? HZ_CLASS_NONE : info->class_;
}

#endif
