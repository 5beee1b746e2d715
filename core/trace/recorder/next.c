/*
 * The allocator under the recorder: see next.h.
 */
#include "next.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { EARLY_ALIGN = 16 };

_Alignas(EARLY_ALIGN) unsigned char hz_early[HZ_EARLY_BYTES];
static atomic_size_t early_used;
static atomic_bool is_finding;

void *hz_next_find(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static void *early_block(size_t size)
{
    const size_t bytes = (size + EARLY_ALIGN - 1) / EARLY_ALIGN * EARLY_ALIGN;
    if (size > HZ_EARLY_BYTES) return NULL;
    const size_t at = atomic_fetch_add(&early_used, bytes);
    return at + bytes <= HZ_EARLY_BYTES ? hz_early + at : NULL;
}

#define FIND(type, name, parameters, arguments, otherwise)                                         \
    *(void **)&found.name = hz_next_find(#name);
#define IS_THERE(type, name, parameters, arguments, otherwise) &&found.name != NULL

/* False: they are just being looked for, and the caller must do without. */
static bool find_all(void)
{
    if (atomic_exchange(&is_finding, true)) return false;
    hz_next_functions found;
    HZ_NEXT_ALL(FIND)
    if (found.pvalloc == NULL) found.pvalloc = found.valloc; /* musl has none */
    if (!(true HZ_NEXT_ALL(IS_THERE))) abort();
    hz_next = found;
    return true;
}

/* ---- what stands in the table until they are found ------------------------------------------ */

static void *early_zeros(size_t count, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : early_block(bytes);
}

static void *early_copy(void *block, size_t size)
{
    void *larger = early_block(size);
    if (larger != NULL && block != NULL) {
        const size_t readable = (size_t)(hz_early + HZ_EARLY_BYTES - (unsigned char *)block);
        memmove(larger, block, size < readable ? size : readable);
    }
    return larger;
}

/* Finds all functions and calls the one that is asked for; `otherwise`: what there is without. */
#define FIRST(type, name, parameters, arguments, otherwise)                                        \
    static type first_##name parameters                                                            \
    {                                                                                              \
        return find_all() ? hz_next.name arguments : otherwise;                                    \
    }
HZ_NEXT_ALL(FIRST)

#define ENTER(type, name, parameters, arguments, otherwise) .name = first_##name,
hz_next_functions hz_next = {HZ_NEXT_ALL(ENTER)};
