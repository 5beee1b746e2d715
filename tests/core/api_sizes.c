/* Zero sizes, overflowing sizes and sizes that no object can have, through every entry point. */
#include "check.h"
#include "entry_points.h"

#include <stdint.h>
#include <string.h>

static const size_t half = (size_t)PTRDIFF_MAX + 1;

/* ---- too large ------------------------------------------------------------------------------ */

static void require_too_large(const entry_point *entry, size_t size)
{
    errno = 0;
    void *block = entry->take(size);
    require(block == NULL, "%s of %zu bytes gave %p", entry->name, size, block);
    require(errno == ENOMEM, "%s of %zu bytes left errno %d", entry->name, size, errno);
}

CHECK("every entry point refuses sizes above PTRDIFF_MAX with ENOMEM")
{
    for (size_t i = 0; i < COUNT(entry_points); i++) {
        for (size_t less = 0; less < 70000; less = less < 300 ? less + 1 : less + 997) {
            require_too_large(&entry_points[i], SIZE_MAX - less);
            require_too_large(&entry_points[i], half + less);
        }
        for (unsigned bit = 0; bit < 62; bit++)
            require_too_large(&entry_points[i], half + ((size_t)1 << bit));
    }
}

CHECK("sizes beyond the address space fail with ENOMEM")
{
    for (size_t i = 0; i < COUNT(entry_points); i++) {
        require_too_large(&entry_points[i], (size_t)PTRDIFF_MAX);
        require_too_large(&entry_points[i], (size_t)PTRDIFF_MAX - 4096);
        require_too_large(&entry_points[i], (size_t)1 << 62);
        require_too_large(&entry_points[i], (size_t)1 << 48);
    }
}

/* ---- products that overflow ----------------------------------------------------------------- */

static const size_t overflowing[][2] = {
    {SIZE_MAX / 2 + 1, 2},
    {2, SIZE_MAX / 2 + 1},
    {(size_t)1 << 33, (size_t)1 << 33},
    {SIZE_MAX, SIZE_MAX},
    {SIZE_MAX / 16 + 2, 16},
    {SIZE_MAX / 4096 + 1, 4096},
    {3, SIZE_MAX / 3 + 1},
    {(size_t)1 << 32, (size_t)1 << 32},
    {65537, SIZE_MAX / 65536},
};

CHECK("calloc of an overflowing product fails with ENOMEM")
{
    for (size_t i = 0; i < COUNT(overflowing); i++) {
        errno = 0;
        void *block = calloc(overflowing[i][0], overflowing[i][1]);
        require(block == NULL && errno == ENOMEM, "calloc(%zu, %zu) gave %p, errno %d",
                overflowing[i][0], overflowing[i][1], block, errno);
    }
}

CHECK("reallocarray of an overflowing product fails and keeps the block")
{
    unsigned char *block = malloc(64);
    memset(block, 0x3c, 64);
    for (size_t i = 0; i < COUNT(overflowing); i++) {
        errno = 0;
        void *moved = reallocarray(block, overflowing[i][0], overflowing[i][1]);
        require(moved == NULL && errno == ENOMEM, "reallocarray(%zu, %zu) gave %p, errno %d",
                overflowing[i][0], overflowing[i][1], moved, errno);
    }
    for (size_t i = 0; i < 64; i++)
        require(block[i] == 0x3c, "byte %zu of the old block changed", i);
    free(block);
}

/* ---- alignment plus size overflows ---------------------------------------------------------- */

CHECK("memalign(a, about -a) fails for every alignment")
{
    for (unsigned bit = 6; bit < 63; bit++) {
        const size_t alignment = (size_t)1 << bit;
        for (size_t less = 0; less < 40; less++) {
            errno = 0;
            void *block = memalign(alignment, (size_t)0 - alignment + 1 + less - 20);
            require(block == NULL && errno != 0, "memalign(%zu, -%zu%+d) gave %p", alignment,
                    alignment, (int)less - 19, block);
        }
    }
}

/* ---- zero ----------------------------------------------------------------------------------- */

CHECK("zero bytes give a unique block from every entry point")
{
    for (size_t i = 0; i < COUNT(entry_points); i++) {
        if (entry_points[i].take == take_realloc_grow)
            continue; /* realloc(block, 0) frees: a check of its own */
        void *first = entry_points[i].take(0);
        void *second = entry_points[i].take(0);
        require(first != NULL && second != NULL, "%s of 0 bytes gave NULL", entry_points[i].name);
        require(first != second, "%s of 0 bytes gave %p twice", entry_points[i].name, first);
        free(first);
        free(second);
    }
}

CHECK("a thousand blocks of zero bytes are distinct")
{
    static char *blocks[1000];
    for (size_t i = 0; i < COUNT(blocks); i++) {
        blocks[i] = malloc(0);
        require(blocks[i] != NULL, "block %zu is NULL", i);
        for (size_t j = 0; j < i; j++)
            require(blocks[i] != blocks[j], "blocks %zu and %zu are one", i, j);
    }
    for (size_t i = 0; i < COUNT(blocks); i++) free(blocks[i]);
}

CHECK("realloc(block, 0) frees the block and gives NULL")
{
    void *block = malloc(100);
    require(realloc(block, 0) == NULL, "realloc(block, 0) gave a block");
}

CHECK("realloc(block, 0) leaks nothing")
{
    for (int i = 0; i < 1000; i++)
        require(realloc(malloc(1000), 0) == NULL, "realloc(block, 0) gave a block");
    const size_t before = resident_bytes();
    for (int i = 0; i < 300000; i++)
        require(realloc(malloc(1000), 0) == NULL, "realloc(block, 0) gave a block");
    const size_t after = resident_bytes();
    require(after < before + (2u << 20), "resident memory grew from %zu to %zu bytes", before,
            after);
}
