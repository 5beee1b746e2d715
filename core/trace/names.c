/*
 * The names of operations: see names.h.
 */
#include "names.h"

#include <string.h>

static const char *const names[HZ_KINDS] = {
    [HZ_TRACE_MALLOC] = "malloc",
    [HZ_TRACE_CALLOC] = "calloc",
    [HZ_TRACE_ALIGNED_ALLOC] = "aligned_alloc",
    [HZ_TRACE_MEMALIGN] = "memalign",
    [HZ_TRACE_POSIX_MEMALIGN] = "posix_memalign",
    [HZ_TRACE_VALLOC] = "valloc",
    [HZ_TRACE_PVALLOC] = "pvalloc",
    [HZ_TRACE_NEW] = "new",
    [HZ_TRACE_NEW_NOTHROW] = "new_nothrow",
    [HZ_TRACE_NEW_ALIGNED] = "new_aligned",
    [HZ_TRACE_NEW_ALIGNED_NOTHROW] = "new_aligned_nothrow",
    [HZ_TRACE_REALLOC] = "realloc",
    [HZ_TRACE_FREE] = "free",
    [HZ_TRACE_FREE_SIZED] = "free_sized",
    [HZ_TRACE_FREE_ALIGNED_SIZED] = "free_aligned_sized",
    [HZ_TRACE_DELETE] = "delete",
    [HZ_TRACE_DELETE_SIZED] = "delete_sized",
    [HZ_TRACE_DELETE_ALIGNED] = "delete_aligned",
    [HZ_TRACE_DELETE_SIZED_ALIGNED] = "delete_sized_aligned",
    [HZ_TRACE_FETCH] = "fetch",
    [HZ_TRACE_HAND] = "hand",
    [HZ_TRACE_SPAWN] = "spawn",
    [HZ_TRACE_JOIN] = "join",
    [HZ_TRACE_TOUCH] = "touch",
};

const char *hz_kind_name(unsigned kind)
{
    return kind < HZ_KINDS ? names[kind] : NULL;
}

hz_trace_kind hz_kind_named(const char *name, size_t length)
{
    for (unsigned kind = 0; kind < HZ_KINDS; kind++)
        if (names[kind] != NULL && strlen(names[kind]) == length &&
            memcmp(names[kind], name, length) == 0)
            return (hz_trace_kind)kind;
    return (hz_trace_kind)0;
}
