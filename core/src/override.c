/*
 * The kin of malloc and free: what makes libhz.so and libhz.a a drop-in, each a thin name for a
 * function of hz.h. malloc and free themselves stand in alloc.c and free.c (HZ_DROP_IN_NAME), C++'s
 * operators in override_new.c, what glibc adds in extensions.c.
 */
#include <hz/hz.h>

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include "override.h"

__attribute__((visibility("hidden"))) const char hz_override = 0;

/* ---- C -------------------------------------------------------------------------------------- */

DROP_IN void *memalign(size_t align, size_t size)
{
    return hz_memalign(align, size);
}

DROP_IN void *aligned_alloc(size_t align, size_t size)
{
    return hz_aligned_alloc(align, size);
}

DROP_IN int posix_memalign(void **block, size_t align, size_t size)
{
    return hz_posix_memalign(block, align, size);
}

DROP_IN void *valloc(size_t size)
{
    return hz_memalign((size_t)getpagesize(), size);
}

DROP_IN void *pvalloc(size_t size)
{
    size_t page = (size_t)getpagesize();
    if (size > SIZE_MAX - page) {
        errno = ENOMEM;
        return NULL;
    }
    return hz_memalign(page, (size + page - 1) & ~(page - 1));
}

DROP_IN void *reallocarray(void *block, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return hz_realloc(block, bytes);
}

DROP_IN void free_sized(void *block, size_t size)
{
    hz_free_sized(block, size);
}

DROP_IN void free_aligned_sized(void *block, size_t align, size_t size)
{
    (void)align;
    hz_free_sized(block, size);
}

void *__libc_memalign(size_t align, size_t size) SAME_AS(memalign);
void *__libc_valloc(size_t size) SAME_AS(valloc);
void *__libc_pvalloc(size_t size) SAME_AS(pvalloc);
