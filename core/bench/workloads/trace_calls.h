/*
 * The calls of a trace: each kind of operation as a call of this process's allocator.
 *
 * C++'s operators, and those of C that are younger than the C library may be, are looked up by
 * name; where the process has none, what they are made of is called.
 */
#ifndef HZ_BENCH_TRACE_CALLS_H
#define HZ_BENCH_TRACE_CALLS_H

#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace_format.h"

/* C++ passes a reference to an object that nothing reads. */
typedef struct hz_nothrow {
    char nothing; /* not read */
} hz_nothrow;

/* pvalloc, which only glibc has: whole pages at the beginning of a page. */
static inline void *hz_trace_whole_pages(size_t size)
{
#ifdef __GLIBC__
    return pvalloc(size);
#else
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return memalign(page, (size + page - 1) & -page);
#endif
}

/* The functions that are looked up; NULL: this process has none, and another stands for it. */
typedef struct hz_looked_up {
    void *(*plain_new)(size_t);
    void *(*nothrow_new)(size_t, const hz_nothrow *);
    void *(*aligned_new)(size_t, size_t);
    void *(*aligned_nothrow_new)(size_t, size_t, const hz_nothrow *);
    void (*plain_delete)(void *);
    void (*sized_delete)(void *, size_t);
    void (*aligned_delete)(void *, size_t);
    void (*sized_aligned_delete)(void *, size_t, size_t);
    void (*free_sized)(void *, size_t);
    void (*free_aligned_sized)(void *, size_t, size_t);
} hz_looked_up;

/* Stores the function of that name; `function` points to a pointer to a function. */
static inline void hz_find_call(const char *name, void *function)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &found, sizeof found);
}

/* Looks all of them up. The names are those of 64-bit systems. */
static inline hz_looked_up hz_look_up(void)
{
    hz_looked_up calls;
    hz_find_call("_Znwm", &calls.plain_new);
    hz_find_call("_ZnwmRKSt9nothrow_t", &calls.nothrow_new);
    hz_find_call("_ZnwmSt11align_val_t", &calls.aligned_new);
    hz_find_call("_ZnwmSt11align_val_tRKSt9nothrow_t", &calls.aligned_nothrow_new);
    hz_find_call("_ZdlPv", &calls.plain_delete);
    hz_find_call("_ZdlPvm", &calls.sized_delete);
    hz_find_call("_ZdlPvSt11align_val_t", &calls.aligned_delete);
    hz_find_call("_ZdlPvmSt11align_val_t", &calls.sized_aligned_delete);
    hz_find_call("free_sized", &calls.free_sized);
    hz_find_call("free_aligned_sized", &calls.free_aligned_sized);
    if (calls.plain_new == NULL) calls.plain_new = malloc;
    if (calls.plain_delete == NULL) calls.plain_delete = free;
    return calls;
}

/* An alignment that every function takes; without one, that of a pointer. */
static inline size_t hz_trace_alignment(unsigned shift)
{
    const size_t alignment = (size_t)1 << shift;
    return alignment < sizeof(void *) ? sizeof(void *) : alignment;
}

static inline void *hz_trace_align(size_t alignment, size_t size)
{
    void *block = NULL;
    return posix_memalign(&block, alignment, size) == 0 ? block : NULL;
}

/* The block that an operation gives, or NULL. */
static inline void *hz_trace_take(const hz_looked_up *calls, const hz_trace_operation *op)
{
    static const hz_nothrow nothrow;
    const size_t alignment = hz_trace_alignment(op->align_shift);
    switch (op->kind) {
    case HZ_TRACE_CALLOC:
        return calloc(1, op->size);
    case HZ_TRACE_ALIGNED_ALLOC:
        return aligned_alloc(alignment, op->size);
    case HZ_TRACE_MEMALIGN:
        return memalign(alignment, op->size);
    case HZ_TRACE_POSIX_MEMALIGN:
        return hz_trace_align(alignment, op->size);
    case HZ_TRACE_VALLOC:
        return valloc(op->size);
    case HZ_TRACE_PVALLOC:
        return hz_trace_whole_pages(op->size);
    case HZ_TRACE_NEW:
        return calls->plain_new(op->size);
    case HZ_TRACE_NEW_NOTHROW:
        if (calls->nothrow_new != NULL) return calls->nothrow_new(op->size, &nothrow);
        break;
    case HZ_TRACE_NEW_ALIGNED:
        if (calls->aligned_new != NULL) return calls->aligned_new(op->size, alignment);
        return hz_trace_align(alignment, op->size);
    case HZ_TRACE_NEW_ALIGNED_NOTHROW:
        if (calls->aligned_nothrow_new != NULL)
            return calls->aligned_nothrow_new(op->size, alignment, &nothrow);
        return hz_trace_align(alignment, op->size);
    default:
        break;
    }
    return malloc(op->size);
}

/* Whether a block is ended by its address and size alone. */
static inline bool hz_trace_is_plain_end(hz_trace_kind kind)
{
    return kind == HZ_TRACE_FREE || kind == HZ_TRACE_DELETE || kind == HZ_TRACE_DELETE_SIZED;
}

/* Ends such a block. */
static inline void hz_trace_end_plain(const hz_looked_up *calls, const hz_trace_operation *op,
                                      void *block)
{
    if (op->kind == HZ_TRACE_FREE)
        free(block);
    else if (op->kind == HZ_TRACE_DELETE_SIZED && calls->sized_delete != NULL)
        calls->sized_delete(block, op->size);
    else
        calls->plain_delete(block);
}

/* Ends a block as an operation does. */
static inline void hz_trace_end(const hz_looked_up *calls, const hz_trace_operation *op,
                                void *block)
{
    const size_t alignment = hz_trace_alignment(op->align_shift);
    if (hz_trace_is_plain_end(op->kind))
        hz_trace_end_plain(calls, op, block);
    else if (op->kind == HZ_TRACE_FREE_SIZED && calls->free_sized != NULL)
        calls->free_sized(block, op->size);
    else if (op->kind == HZ_TRACE_FREE_ALIGNED_SIZED && calls->free_aligned_sized != NULL)
        calls->free_aligned_sized(block, alignment, op->size);
    else if (op->kind < HZ_TRACE_DELETE)
        free(block);
    else if (op->kind == HZ_TRACE_DELETE_ALIGNED && calls->aligned_delete != NULL)
        calls->aligned_delete(block, alignment);
    else if (op->kind == HZ_TRACE_DELETE_SIZED_ALIGNED && calls->sized_aligned_delete != NULL)
        calls->sized_aligned_delete(block, op->size, alignment);
    else
        calls->plain_delete(block);
}

#endif
