/*
 * hz, a general-purpose allocator whose parameters are read when the process starts.
 *
 * libhz.so also defines malloc, free and the rest of the C and C++ allocation functions with this
 * behaviour: preload it or link with it. The functions below are the same under hz's own names. All
 * behave as glibc documents its namesakes; every block is aligned to 16 bytes at least. A double or
 * invalid free ends the process with a message: an invalid one at the call, a double one when the
 * block would be given out again (HZ_DOUBLE_FREE=at_call: at the call, too). A block whose second
 * word was written to after its free is not given out again, and the process runs on.
 * core/SECURITY.md says exactly what is promised, in which mode, and what is not.
 */
#ifndef HZ_HZ_H
#define HZ_HZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HZ_API __attribute__((visibility("default")))
#else
#define HZ_API
#endif

HZ_API void *hz_malloc(size_t size);
HZ_API void *hz_calloc(size_t count, size_t size);
HZ_API void *hz_realloc(void *block, size_t size);
HZ_API void hz_free(void *block);
/* `size` is what was asked for; hz looks at it only under HZ_HARDENING. */
HZ_API void hz_free_sized(void *block, size_t size);

/* `align` is a power of two; of memalign any other is rounded up to one. */
HZ_API void *hz_memalign(size_t align, size_t size);
HZ_API void *hz_aligned_alloc(size_t align, size_t size);
HZ_API int hz_posix_memalign(void **block, size_t align, size_t size);

/* Bytes of `block` that may be used, at least what was asked for; 0 for NULL. */
HZ_API size_t hz_usable_size(const void *block);

/* Gives memory that is not in use back to the system, except what other threads have in their
 * magazines; true when there was any. */
HZ_API bool hz_trim(void);

/*
 * How much the program has, and how much hz: exact while no other thread is inside hz. A block
 * counts with the bytes of its class, or its pages. held_bytes less live_bytes is what hz could
 * give out or return.
 */
typedef struct hz_usage {
    size_t committed_bytes; /* address space made usable so far */
    size_t free_bytes;      /* unused pages that are still resident: a trim returns them */
    size_t held_bytes;      /* all pages that hold blocks, and those unused ones */
    size_t live_bytes;      /* blocks that the program has */
    size_t live_blocks;     /* their number */
    size_t cached_bytes;    /* free blocks in the caches of threads */
    size_t cached_blocks;   /* their number */
    size_t shared_blocks;   /* free blocks that all threads share */
} hz_usage;
HZ_API hz_usage hz_usage_now(void);

/*
 * Writes {"version","frozen","config":{...},"counters":{...},"memory":{...}} into `text` of `size`
 * bytes, always terminated; returns the length that the whole needs, as snprintf does. "memory" has
 * the fields of hz_usage, and of each class that is in use the live, free and cut blocks.
 */
HZ_API size_t hz_stats_json(char *text, size_t size);

/* The value in effect of the parameter `name` (of an enum, the index of its word); false when there
 * is none. */
HZ_API bool hz_param_value(const char *name, int64_t *value);

HZ_API const char *hz_version(void);

#ifdef __cplusplus
}
#endif

#endif
