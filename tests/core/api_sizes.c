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

static void too_large(size_t index)
{
    const entry_point *entry = &entry_points[index];
    for (size_t less = 0; less < 70000; less = less < 300 ? less + 1 : less + 997) {
        require_too_large(entry, SIZE_MAX - less);
        require_too_large(entry, half + less);
    }
    for (unsigned bit = 0; bit < 62; bit++) require_too_large(entry, half + ((size_t)1 << bit));
}

#define TOO_LARGE(index)                                                                           \
    static void too_large_##index(void)                                                            \
    {                                                                                              \
        too_large(index);                                                                          \
    }
TOO_LARGE(0)
TOO_LARGE(1)
TOO_LARGE(2)
TOO_LARGE(3)
TOO_LARGE(4)
TOO_LARGE(5)
TOO_LARGE(6)
TOO_LARGE(7)
TOO_LARGE(8)
TOO_LARGE(9)
TOO_LARGE(10)
TOO_LARGE(11)
TOO_LARGE(12)
TOO_LARGE(13)
TOO_LARGE(14)
TOO_LARGE(15)
_Static_assert(COUNT(entry_points) == 16, "each entry point has its check");

static void sizes_beyond_the_address_space_fail(void)
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

static void calloc_of_an_overflowing_product_fails(void)
{
    for (size_t i = 0; i < COUNT(overflowing); i++) {
        errno = 0;
        void *block = calloc(overflowing[i][0], overflowing[i][1]);
        require(block == NULL && errno == ENOMEM, "calloc(%zu, %zu) gave %p, errno %d",
                overflowing[i][0], overflowing[i][1], block, errno);
    }
}

static void reallocarray_of_an_overflowing_product_keeps_the_block(void)
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

static void realloc_too_large_keeps_the_block(void)
{
    unsigned char *block = malloc(5000);
    memset(block, 0x3c, 5000);
    errno = 0;
    require(realloc(block, SIZE_MAX - 8) == NULL && errno == ENOMEM, "errno is %d", errno);
    for (size_t i = 0; i < 5000; i++)
        require(block[i] == 0x3c, "byte %zu of the old block changed", i);
    free(block);
}

/* ---- alignment plus size overflows ---------------------------------------------------------- */

static void memalign_whose_sum_overflows_fails(void)
{
    static const size_t cases[][2] = {
        {(size_t)1 << 62, PTRDIFF_MAX - 100}, {(size_t)1 << 63, 1},
        {(size_t)1 << 63, SIZE_MAX},          {(size_t)1 << 62, (size_t)1 << 62},
        {(size_t)1 << 40, PTRDIFF_MAX},       {16, SIZE_MAX - 15},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        errno = 0;
        void *block = memalign(cases[i][0], cases[i][1]);
        require(block == NULL && (errno == ENOMEM || errno == EINVAL),
                "memalign(%zu, %zu) gave %p, errno %d", cases[i][0], cases[i][1], block, errno);
    }
}

static void memalign_of_minus_the_alignment_fails(void)
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

static void memalign_of_a_huge_power_has_no_memory(void)
{
    for (int bit = 48; bit < 64; bit++) {
        errno = 0;
        void *block = memalign((size_t)1 << bit, 16);
        require(block == NULL && errno == ENOMEM, "2^%d: %p, errno %d", bit, block, errno);
    }
    errno = 0;
    require(memalign(SIZE_MAX, 16) == NULL && errno == EINVAL, "SIZE_MAX: errno %d", errno);
}

static void posix_memalign_of_a_huge_alignment_fails(void)
{
    for (unsigned bit = 48; bit < 64; bit++) {
        void *block = &block;
        const int reason = posix_memalign(&block, (size_t)1 << bit, 16);
        require(reason == ENOMEM || reason == EINVAL, "alignment 1<<%u: result %d", bit, reason);
        require(block == (void *)&block, "alignment 1<<%u: the pointer was touched", bit);
    }
}

/* ---- zero ----------------------------------------------------------------------------------- */

static void zero_bytes_give_a_unique_block(void)
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

static void zero_elements_give_a_unique_block(void)
{
    void *const blocks[] = {calloc(0, 0), calloc(0, 8), calloc(8, 0), reallocarray(NULL, 0, 8)};
    for (size_t i = 0; i < COUNT(blocks); i++) {
        require(blocks[i] != NULL, "case %zu gave NULL", i);
        for (size_t j = 0; j < i; j++)
            require(blocks[i] != blocks[j], "cases %zu and %zu are one block", i, j);
    }
    for (size_t i = 0; i < COUNT(blocks); i++) free(blocks[i]);
}

static void a_thousand_zero_blocks_are_distinct(void)
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

static void realloc_to_zero_frees_and_gives_null(void)
{
    void *block = malloc(100);
    require(realloc(block, 0) == NULL, "realloc(block, 0) gave a block");
}

static void realloc_to_zero_leaks_nothing(void)
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

#define TOO_LARGE_ROW(index, name)                                                                 \
    {                                                                                              \
        name " refuses every size above PTRDIFF_MAX with ENOMEM", too_large_##index, 0             \
    }

static const check checks[] = {
    TOO_LARGE_ROW(0, "malloc"),
    TOO_LARGE_ROW(1, "calloc(1, n)"),
    TOO_LARGE_ROW(2, "calloc(n, 1)"),
    TOO_LARGE_ROW(3, "realloc(NULL, n)"),
    TOO_LARGE_ROW(4, "realloc(block, n)"),
    TOO_LARGE_ROW(5, "reallocarray"),
    TOO_LARGE_ROW(6, "memalign of 64"),
    TOO_LARGE_ROW(7, "memalign of 65536"),
    TOO_LARGE_ROW(8, "aligned_alloc"),
    TOO_LARGE_ROW(9, "posix_memalign, which leaves the pointer alone,"),
    TOO_LARGE_ROW(10, "valloc"),
    TOO_LARGE_ROW(11, "pvalloc"),
    TOO_LARGE_ROW(12, "__libc_malloc"),
    TOO_LARGE_ROW(13, "__libc_calloc"),
    TOO_LARGE_ROW(14, "__libc_realloc"),
    TOO_LARGE_ROW(15, "__libc_memalign"),
    {"sizes beyond the address space fail with ENOMEM", sizes_beyond_the_address_space_fail, 0},
    {"calloc of an overflowing product fails with ENOMEM", calloc_of_an_overflowing_product_fails,
     0},
    {"reallocarray of an overflowing product fails and keeps the block",
     reallocarray_of_an_overflowing_product_keeps_the_block, 0},
    {"realloc of too much fails and keeps the block", realloc_too_large_keeps_the_block, 0},
    {"memalign whose alignment and size overflow together fails",
     memalign_whose_sum_overflows_fails, 0},
    {"memalign(a, about -a) fails for every alignment", memalign_of_minus_the_alignment_fails, 0},
    {"memalign of a huge power of two has no memory", memalign_of_a_huge_power_has_no_memory, 0},
    {"posix_memalign of a huge alignment fails", posix_memalign_of_a_huge_alignment_fails, 0},
    {"zero bytes give a unique block from every entry point", zero_bytes_give_a_unique_block, 0},
    {"zero elements give a unique block", zero_elements_give_a_unique_block, 0},
    {"a thousand blocks of zero bytes are distinct", a_thousand_zero_blocks_are_distinct, 0},
    {"realloc(block, 0) frees the block and gives NULL", realloc_to_zero_frees_and_gives_null, 0},
    {"realloc(block, 0) leaks nothing", realloc_to_zero_leaks_nothing, 0},
};

int main(int argc, char **argv)
{
    return run_checks(checks, COUNT(checks), argc, argv);
}
