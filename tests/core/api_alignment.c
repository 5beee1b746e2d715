/* Where blocks start: alignment of every size, the aligned entry points, and their errors. */
#include "check.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t off(const void *block, size_t alignment)
{
    return (uintptr_t)block & (alignment - 1);
}

CHECK("malloc, calloc and realloc align every size to 16")
{
    for (size_t size = 0; size <= 40000; size++) {
        char *first = malloc(size);
        char *second = calloc(1, size);
        require(off(first, 16) == 0, "malloc(%zu) gave %p", size, (void *)first);
        require(off(second, 16) == 0, "calloc(1, %zu) gave %p", size, (void *)second);
        free(first);
        second = realloc(second, size + 1);
        require(off(second, 16) == 0, "realloc to %zu gave %p", size + 1, (void *)second);
        free(second);
    }
}

/* Fills what was asked, and checks it after neighbours have come and gone. */
static void require_aligned(void *block, size_t alignment, size_t size, const char *by)
{
    require(block != NULL, "%s of %zu bytes at %zu gave NULL", by, size, alignment);
    require(off(block, alignment) == 0, "%s of %zu bytes at %zu gave %p", by, size, alignment,
            block);
    require(malloc_usable_size(block) >= size, "%s of %zu bytes at %zu: usable %zu", by, size,
            alignment, malloc_usable_size(block));
    memset(block, 0x77, size);
}

CHECK("memalign gives every power of two up to 8 MiB")
{
    for (size_t alignment = 1; alignment <= (8u << 20); alignment *= 2) {
        for (size_t size = 1; size < 300000; size = size * 3 + 1) {
            void *block = memalign(alignment, size);
            require_aligned(block, alignment, size, "memalign");
            free(block);
        }
    }
}

CHECK("aligned_alloc takes sizes that are no multiple of the alignment")
{
    static const size_t sizes[] = {1, 100, 4097, 65537, 1000003};
    for (size_t alignment = 1; alignment <= 65536; alignment *= 2) {
        for (size_t i = 0; i < COUNT(sizes); i++) {
            void *block = aligned_alloc(alignment, sizes[i]);
            require_aligned(block, alignment, sizes[i], "aligned_alloc");
            free(block);
        }
    }
}

CHECK("posix_memalign refuses wrong alignments with EINVAL and leaves the pointer alone")
{
    static const size_t wrong[] = {0,  1,  2,  3,   4,    5,        7,
                                   12, 24, 48, 100, 4097, SIZE_MAX, ((size_t)1 << 63) + 8};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        void *block = &block;
        const int reason = posix_memalign(&block, wrong[i], 64);
        require(reason == EINVAL, "alignment %zu: result %d", wrong[i], reason);
        require(block == (void *)&block, "alignment %zu: the pointer was touched", wrong[i]);
    }
}

/* As with glibc: a want of memory sets errno, too. */
CHECK("posix_memalign sets errno for want of memory only")
{
    void *block = NULL;
    errno = 77;
    require(posix_memalign(&block, 24, 64) == EINVAL, "alignment 24 is accepted");
    require(errno == 77, "a wrong alignment set errno to %d", errno);
    require(posix_memalign(&block, 64, SIZE_MAX - 100) == ENOMEM,
            "SIZE_MAX - 100 bytes are accepted");
    require(errno == ENOMEM, "a size too large set errno to %d", errno);
    errno = 77;
    require(posix_memalign(&block, 64, 1 << 20) == 0, "no memory");
    require(errno == 77, "a success set errno to %d", errno);
    free(block);
}

CHECK("aligned_alloc refuses what is no power of two with EINVAL")
{
    static const size_t wrong[] = {0, 3, 24, 48, 100, 4097, SIZE_MAX};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        errno = 0;
        void *block = aligned_alloc(wrong[i], 48);
        require(block == NULL && errno == EINVAL, "alignment %zu gave %p, errno %d", wrong[i],
                block, errno);
    }
}

CHECK("memalign rounds other alignments up or refuses them")
{
    static const size_t odd[] = {3, 24, 48, 100, 4097};
    for (size_t i = 0; i < COUNT(odd); i++) {
        errno = 0;
        void *block = memalign(odd[i], 100);
        size_t power = 1;
        while (power < odd[i]) power *= 2;
        require(block == NULL ? errno == EINVAL : off(block, power) == 0,
                "memalign(%zu) gave %p, errno %d", odd[i], block, errno);
        free(block);
    }
}

CHECK("valloc gives whole pages")
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t size = 1; size < 200000; size = size * 3 + 1) {
        void *block = valloc(size);
        require_aligned(block, page, size, "valloc");
        free(block);
    }
}

CHECK("pvalloc rounds the size up to pages")
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t size = 1; size < 200000; size = size * 3 + 1) {
        void *block = pvalloc(size);
        require_aligned(block, page, (size + page - 1) / page * page, "pvalloc");
        free(block);
    }
}

CHECK("an aligned block can be reallocated")
{
    for (size_t alignment = 16; alignment <= (1u << 20); alignment *= 2) {
        unsigned char *block = memalign(alignment, 1000);
        memset(block, 0x42, 1000);
        block = realloc(block, 100000);
        for (size_t i = 0; i < 1000; i++)
            require(block[i] == 0x42, "alignment %zu: byte %zu was lost", alignment, i);
        block = realloc(block, 10);
        require(block != NULL && block[9] == 0x42, "alignment %zu: lost when shrunk", alignment);
        free(block);
    }
}
