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
    *(void **)&found.usable_size = required("malloc_usable_size");
    if (found.pvalloc == NULL) found.pvalloc = found.valloc;
    hz_next = found;
    return true;
}

/* ---- what stands in the table until they are found ------------------------------------------ */

static void *first_malloc(size_t size)
{
    return find_all() ? hz_next.malloc(size) : early_block(size);
}

static void *first_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (find_all()) return hz_next.calloc(count, size);
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : early_block(bytes);
}

static void *first_realloc(void *block, size_t size)
{
    if (find_all()) return hz_next.realloc(block, size);
    void *larger = early_block(size);
    if (larger != NULL && block != NULL) {
        const size_t readable = (size_t)(hz_early + HZ_EARLY_BYTES - (unsigned char *)block);
        memmove(larger, block, size < readable ? size : readable);
    }
    return larger;
}

static void first_free(void *block)
{
    if (find_all()) hz_next.free(block);
}

static int first_posix_memalign(void **block, size_t align, size_t size)
{
    return find_all() ? hz_next.posix_memalign(block, align, size) : ENOMEM;
}

static void *first_aligned_alloc(size_t align, size_t size)
{
    return find_all() ? hz_next.aligned_alloc(align, size) : NULL;
}

static void *first_memalign(size_t align, size_t size)
{
    return find_all() ? hz_next.memalign(align, size) : NULL;
}

static void *first_valloc(size_t size)
{
    return find_all() ? hz_next.valloc(size) : NULL;
}

static void *first_pvalloc(size_t size)
{
    return find_all() ? hz_next.pvalloc(size) : NULL;
}

static size_t first_usable_size(void *block)
{
    return find_all() ? hz_next.usable_size(block) : 0;
}

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
    .usable_size = first_usable_size,
};
