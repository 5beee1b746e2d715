/*
 * malloc, free and their kin: each calls the next definition of its name and logs what came of it.
 * An allocation is logged after it, a free before it, a realloc before and after.
 */
#include "entry.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* ---- C ----------------------------------------------------------------------------------------
 */

HZ_INLINED void *given(unsigned kind, void *block, uint64_t size)
{
    if (HZ_LIKELY(block != NULL)) hz_log_event(kind, block, size);
    return block;
}

ENTRY void *malloc(size_t size)
{
    return given(HZ_TRACE_MALLOC, hz_next.malloc(size), size);
}

ENTRY void *calloc(size_t count, size_t size)
{
    return given(HZ_TRACE_CALLOC, hz_next.calloc(count, size), count * size);
}

ENTRY void free(void *block)
{
    hz_end_block(HZ_TRACE_FREE, block);
}

/* A block of hz_early is copied: only hz_early knows how large it is. */
static void *realloc_early(const void *block, size_t size)
{
    const size_t readable = (size_t)(hz_early + HZ_EARLY_BYTES - (const unsigned char *)block);
    void *larger = malloc(size);
    if (larger != NULL) memcpy(larger, block, size < readable ? size : readable);
    return larger;
}

ENTRY void *realloc(void *block, size_t size)
{
    if (block == NULL) return given(HZ_TRACE_MALLOC, hz_next.realloc(NULL, size), size);
    if (HZ_UNLIKELY(hz_is_early(block))) return realloc_early(block, size);
    hz_log_event(HZ_LOG_MOVING, block, 0);
    void *moved = hz_next.realloc(block, size);
    if (moved != NULL)
        hz_log_event(HZ_LOG_MOVED, moved, size);
    else if (size != 0)
        hz_log_event(HZ_LOG_STAYED, block, 0);
    return moved;
}

ENTRY void *reallocarray(void *block, size_t count, size_t size)
{
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes)) return realloc(block, bytes);
    errno = ENOMEM;
    return NULL;
}

ENTRY int posix_memalign(void **block, size_t align, size_t size)
{
    const int failure = hz_next.posix_memalign(block, align, size);
    if (failure == 0) (void)given(HZ_TRACE_POSIX_MEMALIGN, *block, hz_with_align(align, size));
    return failure;
}

ENTRY void *aligned_alloc(size_t align, size_t size)
{
    return given(HZ_TRACE_ALIGNED_ALLOC, hz_next.aligned_alloc(align, size),
                 hz_with_align(align, size));
}

ENTRY void *memalign(size_t align, size_t size)
{
    return given(HZ_TRACE_MEMALIGN, hz_next.memalign(align, size), hz_with_align(align, size));
}

ENTRY void *valloc(size_t size)
{
    return given(HZ_TRACE_VALLOC, hz_next.valloc(size), size);
}

ENTRY void *pvalloc(size_t size)
{
    return given(HZ_TRACE_PVALLOC, hz_next.pvalloc(size), size);
}

/* C23's forms tell a size that `free` does not need; not every allocator has them. */
ENTRY void free_sized(void *block, size_t size)
{
    (void)size;
    hz_end_block(HZ_TRACE_FREE_SIZED, block);
}

ENTRY void free_aligned_sized(void *block, size_t align, size_t size)
{
    (void)align, (void)size;
    hz_end_block(HZ_TRACE_FREE_ALIGNED_SIZED, block);
}

/* ---- threads: when one may start, and when another one waited for its end ----------------------
 */

/* Threads that are made in other ways are recorded, too; only their origin is not known. */
typedef int create_form(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                        void *argument);
typedef int join_form(pthread_t thread, void **result);

ENTRY int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                         void *(*start)(void *), void *argument)
{
    static create_form *next;
    if (next == NULL) *(void **)&next = hz_next_find("pthread_create");
    if (next == NULL) return EAGAIN;
    hz_log_event(HZ_LOG_CREATING, NULL, 0);
    const int failure = next(thread, attributes, start, argument);
    hz_log_event(HZ_LOG_CREATED, failure == 0 ? (const void *)*thread : NULL, 0);
    return failure;
}

ENTRY int pthread_join(pthread_t thread, void **result)
{
    static join_form *next;
    if (next == NULL) *(void **)&next = hz_next_find("pthread_join");
    if (next == NULL) return EINVAL;
    const int failure = next(thread, result);
    if (failure == 0) hz_log_event(HZ_LOG_JOINED, (const void *)thread, 0);
    return failure;
}
