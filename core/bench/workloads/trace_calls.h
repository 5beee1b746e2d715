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

/* A function that was looked up; how it is called, its kind tells. */
typedef union hz_found {
    void *object; /* NULL: this process has none, and another stands for it */
    void *(*take)(size_t size);
    void *(*take_with)(size_t size, size_t more);
    void *(*take_with_two)(size_t size, size_t align, const void *nothrow);
    void (*end)(void *block);
    void (*end_with)(void *block, size_t size_or_align);
    void (*end_with_two)(void *block, size_t first, size_t second);
} hz_found;

/* By kind. */
typedef struct hz_looked_up {
    hz_found of[1 << HZ_TRACE_KIND_BITS];
} hz_looked_up;

/* Looks all of them up. The names are those of 64-bit systems. */
static inline hz_looked_up hz_look_up(void)
{
    static const struct {
        hz_trace_kind kind;
        const char *name;
    } names[] = {
        {HZ_TRACE_NEW, "_Znwm"},
        {HZ_TRACE_NEW_NOTHROW, "_ZnwmRKSt9nothrow_t"},
        {HZ_TRACE_NEW_ALIGNED, "_ZnwmSt11align_val_t"},
        {HZ_TRACE_NEW_ALIGNED_NOTHROW, "_ZnwmSt11align_val_tRKSt9nothrow_t"},
        {HZ_TRACE_DELETE, "_ZdlPv"},
        {HZ_TRACE_DELETE_SIZED, "_ZdlPvm"},
        {HZ_TRACE_DELETE_ALIGNED, "_ZdlPvSt11align_val_t"},
        {HZ_TRACE_DELETE_SIZED_ALIGNED, "_ZdlPvmSt11align_val_t"},
        {HZ_TRACE_FREE_SIZED, "free_sized"},
        {HZ_TRACE_FREE_ALIGNED_SIZED, "free_aligned_sized"},
    };
    hz_looked_up calls = {0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        calls.of[names[i].kind].object = dlsym(RTLD_DEFAULT, names[i].name);
    if (calls.of[HZ_TRACE_NEW].object == NULL) calls.of[HZ_TRACE_NEW].take = malloc;
    if (calls.of[HZ_TRACE_DELETE].object == NULL) calls.of[HZ_TRACE_DELETE].end = free;
    return calls;
}

/* An alignment that every function takes; without one, that of a pointer. */
static inline size_t hz_trace_alignment(unsigned shift)
{
    const size_t alignment = (size_t)1 << shift;
    return alignment < sizeof(void *) ? sizeof(void *) : alignment;
}

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

/* The block that an operation gives, or NULL. */
static inline void *hz_trace_take(const hz_looked_up *calls, const hz_trace_operation *op)
{
    static const char nothrow = 0; /* C++ passes a reference to an object that nothing reads */
    const size_t alignment = hz_trace_alignment(op->align_shift);
    const hz_found of = calls->of[op->kind];
    void *block = NULL;
    switch (op->kind) {
    case HZ_TRACE_CALLOC:
        return calloc(1, op->size);
    case HZ_TRACE_ALIGNED_ALLOC:
        return aligned_alloc(alignment, op->size);
    case HZ_TRACE_MEMALIGN:
        return memalign(alignment, op->size);
    case HZ_TRACE_VALLOC:
        return valloc(op->size);
    case HZ_TRACE_PVALLOC:
        return hz_trace_whole_pages(op->size);
    case HZ_TRACE_NEW:
        return of.take(op->size);
    case HZ_TRACE_NEW_NOTHROW:
        return of.object != NULL ? of.take_with(op->size, (size_t)&nothrow) : malloc(op->size);
    case HZ_TRACE_NEW_ALIGNED:
        if (of.object != NULL) return of.take_with(op->size, alignment);
        break;
    case HZ_TRACE_NEW_ALIGNED_NOTHROW:
        if (of.object != NULL) return of.take_with_two(op->size, alignment, &nothrow);
        break;
    case HZ_TRACE_POSIX_MEMALIGN:
        break;
    default:
        return malloc(op->size);
    }
    return posix_memalign(&block, alignment, op->size) == 0 ? block : NULL;
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
    else if (op->kind == HZ_TRACE_DELETE_SIZED && calls->of[HZ_TRACE_DELETE_SIZED].object != NULL)
        calls->of[HZ_TRACE_DELETE_SIZED].end_with(block, op->size);
    else
        calls->of[HZ_TRACE_DELETE].end(block);
}

/* Ends a block as an operation does. */
static inline void hz_trace_end(const hz_looked_up *calls, const hz_trace_operation *op,
                                void *block)
{
    const size_t alignment = hz_trace_alignment(op->align_shift);
    const hz_found of = calls->of[op->kind];
    if (hz_trace_is_plain_end(op->kind))
        hz_trace_end_plain(calls, op, block);
    else if (of.object == NULL && op->kind < HZ_TRACE_DELETE)
        free(block);
    else if (of.object == NULL)
        calls->of[HZ_TRACE_DELETE].end(block);
    else if (op->kind == HZ_TRACE_FREE_SIZED)
        of.end_with(block, op->size);
    else if (op->kind == HZ_TRACE_DELETE_ALIGNED)
        of.end_with(block, alignment);
    else if (op->kind == HZ_TRACE_FREE_ALIGNED_SIZED)
        of.end_with_two(block, alignment, op->size);
    else
        of.end_with_two(block, op->size, alignment);
}

#endif
