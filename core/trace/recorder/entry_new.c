/*
 * C++'s operators new and delete. They call malloc and free of the allocator under the recorder:
 * the C++ library's own forms would, too, and would come back here.
 */
#include "entry.h"

#include <stdlib.h>

typedef void *new_form(size_t size, size_t second, const void *third);

/*
 * There is no memory: the next operator of this name calls the new handler and throws. Where it
 * succeeds through a malloc that was logged, its block is not logged twice.
 */
static void *new_looked_up(const char *form, unsigned kind, size_t size, size_t second,
                           const void *third, uint64_t logged)
{
    new_form *next;
    *(void **)&next = hz_next_find(form);
    if (next == NULL) abort();
    void *block = next(size, second, third);
    if (block != NULL && hz_log.newest != (uintptr_t)block) hz_log_event(kind, block, logged);
    return block;
}

HZ_INLINED void *new_plain(const char *form, unsigned kind, size_t size, size_t second)
{
    void *block = hz_next.malloc(size);
    if (HZ_UNLIKELY(block == NULL)) return new_looked_up(form, kind, size, second, NULL, size);
    hz_log_event(kind, block, size);
    return block;
}

static inline void *new_aligned(const char *form, unsigned kind, size_t size, size_t align,
                                const void *third)
{
    const uint64_t logged = hz_with_align(align, size);
    void *block = hz_next.aligned_alloc(align, size);
    if (HZ_UNLIKELY(block == NULL)) return new_looked_up(form, kind, size, align, third, logged);
    hz_log_event(kind, block, logged);
    return block;
}

/* The name as the compiler makes it, and as the next one is looked for. */
#define NEW(name, parameters, block)                                                               \
    ENTRY void *name parameters                                                                    \
    {                                                                                              \
        static const char form[] = #name;                                                          \
        return block;                                                                              \
    }
#define NEW_BOTH(suffix, parameters, block)                                                        \
    NEW(_Znwm##suffix, parameters, block) NEW(_Znam##suffix, parameters, block)

NEW_BOTH(, (size_t size), new_plain(form, HZ_TRACE_NEW, size, 0))
NEW_BOTH(RKSt9nothrow_t, (size_t size, const void *tag),
         new_plain(form, HZ_TRACE_NEW_NOTHROW, size, (size_t)tag))
NEW_BOTH(St11align_val_t, (size_t size, size_t align),
         new_aligned(form, HZ_TRACE_NEW_ALIGNED, size, align, NULL))
NEW_BOTH(St11align_val_tRKSt9nothrow_t, (size_t size, size_t align, const void *tag),
         new_aligned(form, HZ_TRACE_NEW_ALIGNED_NOTHROW, size, align, tag))

/* Of operator delete's further arguments the kind tells which there are. */
#define DELETE(name, kind)                                                                         \
    ENTRY void name(void *block)                                                                   \
    {                                                                                              \
        hz_end_block(kind, block);                                                                 \
    }

DELETE(_ZdlPv, HZ_TRACE_DELETE)
DELETE(_ZdaPv, HZ_TRACE_DELETE)
DELETE(_ZdlPvRKSt9nothrow_t, HZ_TRACE_DELETE)
DELETE(_ZdaPvRKSt9nothrow_t, HZ_TRACE_DELETE)
DELETE(_ZdlPvm, HZ_TRACE_DELETE_SIZED)
DELETE(_ZdaPvm, HZ_TRACE_DELETE_SIZED)
DELETE(_ZdlPvSt11align_val_t, HZ_TRACE_DELETE_ALIGNED)
DELETE(_ZdaPvSt11align_val_t, HZ_TRACE_DELETE_ALIGNED)
DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t, HZ_TRACE_DELETE_ALIGNED)
DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t, HZ_TRACE_DELETE_ALIGNED)
DELETE(_ZdlPvmSt11align_val_t, HZ_TRACE_DELETE_SIZED_ALIGNED)
DELETE(_ZdaPvmSt11align_val_t, HZ_TRACE_DELETE_SIZED_ALIGNED)
