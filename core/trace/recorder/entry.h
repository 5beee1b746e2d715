/*
 * Macros for the files that define the names which programs call.
 */
#ifndef HZ_RECORDER_ENTRY_H
#define HZ_RECORDER_ENTRY_H

#include <stddef.h>
#include <stdint.h>

#include "log.h"
#include "next.h"

/* Each of these is a definition of a name that is declared elsewhere, or, for C++, nowhere in C. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"

#define ENTRY __attribute__((visibility("default"), used))

/* A size and an alignment as an aligned event holds them. */
static inline uint64_t hz_with_align(size_t align, size_t size)
{
    const unsigned shift = align > 1 ? 63u - (unsigned)__builtin_clzll(align) : 0;
    return (uint64_t)size << HZ_LOG_ALIGN_BITS | shift;
}

/* Logs the end of a block before it happens; then ends it. */
HZ_INLINED void hz_end_block(unsigned kind, void *block)
{
    if (block == NULL || hz_is_early(block)) return;
    hz_log_event(kind, block, 0);
    hz_next.free(block);
}

#endif
