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

/* Gives memory that is not in use back to the system; true when there was any. Only a thread itself
 * can empty its magazines: the caller's are emptied now, those of every other thread at its next
 * call that finds a magazine empty or full. A thread that makes no such call keeps them. */
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

/* ---- while the program runs ------------------------------------------------------------------ */

typedef enum hz_set_status {
    HZ_SET_DONE = 0,
    HZ_SET_UNKNOWN,    /* no parameter has that name */
    HZ_SET_FIXED,      /* it is read when a process starts, and stays (or the build is frozen) */
    HZ_SET_ILLEGAL,    /* the parameter cannot have that value */
    HZ_SET_UNFIT,      /* the value does not fit that of another parameter */
    HZ_SET_NOT_RUNNING /* hz could not start: there was no memory */
} hz_set_status;

/*
 * Gives the parameter `name` the value `value`, spelled as in the environment: hz_set("decay_ms",
 * "0", ...). Any thread may call it at any time, but no signal handler. If the result is not
 * HZ_SET_DONE, nothing has changed, and `message` (of `size` bytes, always terminated) says what
 * was got and what is legal. `hztune params --live` lists the parameters that may change. A child of
 * fork begins with the values of its parent.
 */
HZ_API hz_set_status hz_set(const char *name, const char *value, char *message, size_t size);

/* Writes the value in effect to `text` ("0", "at_reuse"). If the result is HZ_SET_UNKNOWN, a
 * sentence about that. */
HZ_API hz_set_status hz_get(const char *name, char *text, size_t size);

/* Gets each message of hz, a line with its end, instead of stderr. It may be called by any thread
 * inside malloc or free, and so must not allocate. NULL: stderr again. Returns what was set. */
typedef void hz_message_hook(const char *text);
HZ_API hz_message_hook *hz_on_message(hz_message_hook *hook);

/* Is called when a request of `size` bytes cannot be met, even after what is unused was given back.
 * It may free memory; while it returns true, the request is tried again. hz holds no lock then.
 * NULL: such a request returns NULL at once. Returns what was set. */
typedef bool hz_memory_hook(size_t size);
HZ_API hz_memory_hook *hz_on_out_of_memory(hz_memory_hook *hook);

HZ_API const char *hz_version(void);

#ifdef __cplusplus
}
#endif

#endif
