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

/* Finds one function; a program without it cannot run. */
static void *required(const char *name)
{
    void *found = hz_next_find(name);
    if (found == NULL) abort();
    return found;
}

/* False: they are just being looked for, and the caller must do without. */
static bool find_all(void)
{
    if (atomic_exchange(&is_finding, true)) return false;
    hz_next_functions found;
    *(void **)&found.malloc = required("malloc");
    *(void **)&found.calloc = required("calloc");
    *(void **)&found.realloc = required("realloc");
    *(void **)&found.free = required("free");
    *(void **)&found.posix_memalign = required("posix_memalign");
    *(void **)&found.aligned_alloc = required("aligned_alloc");
    *(void **)&found.memalign = required("memalign");
    *(void **)&found.valloc = required("valloc");
    *(void **)&found.pvalloc = hz_next_find("pvalloc");
    if (found.pvalloc == NULL) found.pvalloc = found.valloc;
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

FIRST(void *, malloc, (size_t size), (size), early_block(size))
FIRST(void *, calloc, (size_t count, size_t size), (count, size), early_zeros(count, size))
FIRST(void *, realloc, (void *block, size_t size), (block, size), early_copy(block, size))
FIRST(void, free, (void *block), (block), (void)0)
FIRST(int, posix_memalign, (void **block, size_t align, size_t size), (block, align, size), ENOMEM)
FIRST(void *, aligned_alloc, (size_t align, size_t size), (align, size), NULL)
FIRST(void *, memalign, (size_t align, size_t size), (align, size), NULL)
FIRST(void *, valloc, (size_t size), (size), NULL)
FIRST(void *, pvalloc, (size_t size), (size), NULL)

hz_next_functions hz_next = {
    .malloc = first_malloc,
    .calloc = first_calloc,
    .realloc = first_realloc,
    .free = first_free,
    .posix_memalign = first_posix_memalign,
    .aligned_alloc = first_aligned_alloc,
    .memalign = first_memalign,
    .valloc = first_valloc,
    .pvalloc = first_pvalloc,
};
