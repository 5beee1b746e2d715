/* What is in blocks and what free leaves alone: contents, usable sizes, errno, and the questions to
 * malloc. */
#include "check.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t sizes[] = {1,      15,      16,      17,      100,      1000,    1024,
                               2000,   4096,    5000,    16384,   32768,    65536,   100000,
                               300000, 1000000, 1048576, 2000000, 10000000, 40000000};

static void fill(unsigned char *block, size_t size, size_t key)
{
    for (size_t i = 0; i < size; i++) block[i] = (unsigned char)(i * 31 + key);
}

static void require_filled(const unsigned char *block, size_t size, size_t key, const char *when)
{
    for (size_t i = 0; i < size; i++) {
        require(block[i] == (unsigned char)(i * 31 + key), "%s: byte %zu of %zu changed", when, i,
                size);
    }
}

static void realloc_keeps_the_contents_growing_and_shrinking(void)
{
    for (size_t from = 0; from < COUNT(sizes); from++) {
        for (size_t to = 0; to < COUNT(sizes); to++) {
            const size_t kept = sizes[from] < sizes[to] ? sizes[from] : sizes[to];
            unsigned char *block = malloc(sizes[from]);
            fill(block, kept, from);
            block = realloc(block, sizes[to]);
            require(block != NULL, "realloc from %zu to %zu gave NULL", sizes[from], sizes[to]);
            require_filled(block, kept, from, "after realloc");
            free(block);
        }
    }
}

static void realloc_byte_by_byte_keeps_the_contents(void)
{
    unsigned char *block = NULL;
    for (size_t size = 1; size <= 20000; size++) {
        block = realloc(block, size);
        block[size - 1] = (unsigned char)(size * 31);
    }
    for (size_t i = 0; i < 20000; i++)
        require(block[i] == (unsigned char)((i + 1) * 31), "byte %zu was lost", i);
    free(block);
}

static void calloc_gives_zeroes_from_used_memory(void)
{
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i + 2 < COUNT(sizes); i++) {
            unsigned char *dirty = malloc(sizes[i]);
            memset(dirty, 0xff, malloc_usable_size(dirty));
            free(dirty);
            unsigned char *clean = calloc(1, sizes[i]);
            const size_t usable = malloc_usable_size(clean);
            for (size_t at = 0; at < usable; at = at < 5000 ? at + 1 : at + 61) {
                require(clean[at] == 0, "byte %zu of calloc(1, %zu) is %d", at, sizes[i],
                        clean[at]);
            }
            memset(clean, 0xff, usable);
            free(clean);
        }
        (void)malloc_trim(0);
    }
}

static void calloc_of_many_small_ones_gives_zeroes(void)
{
    static unsigned char *blocks[5000];
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < COUNT(blocks); i++) {
            const size_t size = i % 700 + 1;
            blocks[i] = calloc(size, 1);
            for (size_t at = 0; at < size; at++) {
                require(blocks[i][at] == 0, "round %d: byte %zu of %zu is %d", round, at, size,
                        blocks[i][at]);
            }
            memset(blocks[i], 0xee, malloc_usable_size(blocks[i]));
        }
        for (size_t i = 0; i < COUNT(blocks); i++) free(blocks[i]);
    }
}

static void usable_size_is_at_least_the_size_and_writable(void)
{
    static unsigned char *blocks[3000];
    for (size_t i = 0; i < COUNT(blocks); i++) {
        const size_t size = i * 23;
        blocks[i] = malloc(size);
        require(malloc_usable_size(blocks[i]) >= size, "malloc(%zu): usable %zu", size,
                malloc_usable_size(blocks[i]));
        fill(blocks[i], malloc_usable_size(blocks[i]), i);
    }
    for (size_t i = 0; i < COUNT(blocks); i++) {
        require_filled(blocks[i], malloc_usable_size(blocks[i]), i, "after neighbours were filled");
        free(blocks[i]);
    }
}

static void usable_size_of_large_blocks_is_writable(void)
{
    for (size_t i = 0; i < COUNT(sizes); i++) {
        unsigned char *block = malloc(sizes[i]);
        const size_t usable = malloc_usable_size(block);
        require(usable >= sizes[i], "malloc(%zu): usable %zu", sizes[i], usable);
        memset(block, 0x11, usable);
        free(block);
    }
}

static void usable_size_of_null_is_zero(void)
{
    require(malloc_usable_size(NULL) == 0, "it is not");
}

static void realloc_within_the_usable_size_keeps_all_of_it(void)
{
    unsigned char *block = malloc(100);
    const size_t usable = malloc_usable_size(block);
    fill(block, usable, 3);
    block = realloc(block, usable);
    require_filled(block, usable, 3, "after realloc to the usable size");
    free(block);
}

static void free_of_null_does_nothing(void)
{
    errno = 1234;
    free(NULL);
    require(errno == 1234, "errno became %d", errno);
}

static void free_keeps_errno(void)
{
    for (int round = 0; round < 3; round++) {
        for (size_t size = 1; size < (200u << 20); size = size * 2 + 1) {
            void *block = malloc(size);
            require(block != NULL, "malloc(%zu) gave NULL", size);
            *(volatile char *)block = 1;
            errno = 1234;
            free(block);
            require(errno == 1234, "free of %zu bytes set errno to %d", size, errno);
        }
    }
}

static void free_of_many_keeps_errno(void)
{
    static void *blocks[20000];
    for (size_t i = 0; i < COUNT(blocks); i++) blocks[i] = malloc(i % 3000 + 1);
    errno = 1234;
    for (size_t i = 0; i < COUNT(blocks); i++) {
        free(blocks[i]);
        require(errno == 1234, "free %zu set errno to %d", i, errno);
    }
}

static void a_successful_allocation_keeps_errno(void)
{
    errno = 1234;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        free(malloc(sizes[i]));
        free(calloc(1, sizes[i]));
        require(errno == 1234, "%zu bytes set errno to %d", sizes[i], errno);
    }
}

static void trim_gives_memory_back(void)
{
    enum { MEBIBYTES = 128, BLOCK = 32768 };
    static char *blocks[(size_t)MEBIBYTES * 1024 * 1024 / BLOCK];
    for (size_t i = 0; i < COUNT(blocks); i++) {
        blocks[i] = malloc(BLOCK);
        memset(blocks[i], 1, BLOCK);
    }
    const size_t full = resident_bytes();
    for (size_t i = 0; i < COUNT(blocks); i++) free(blocks[i]);
    (void)malloc_trim(0);
    const size_t left = resident_bytes();
    require(left + ((size_t)MEBIBYTES * 3 / 4 << 20) < full,
            "resident memory went from %zu to only %zu", full, left);
}

#ifdef __GLIBC__
static void mallinfo2_counts_what_is_in_use(void)
{
    const size_t before = mallinfo2().uordblks;
    static void *blocks[256];
    for (size_t i = 0; i < COUNT(blocks); i++) blocks[i] = malloc(65536);
    const size_t during = mallinfo2().uordblks + mallinfo2().hblkhd;
    require(during >= before + (8u << 20), "16 MiB more in use moved it from %zu to %zu", before,
            during);
    for (size_t i = 0; i < COUNT(blocks); i++) free(blocks[i]);
}

static void malloc_info_writes_a_document(void)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    require(malloc_info(0, stream) == 0, "malloc_info(0) failed");
    (void)fclose(stream);
    require(strncmp(text, "<malloc", 7) == 0, "it begins with %.40s", text);
    free(text);
    errno = 0;
    require(malloc_info(1, stdout) != 0, "malloc_info with unknown options succeeded");
}

static void mallopt_and_malloc_stats_can_be_called(void)
{
    require(mallopt(M_ARENA_MAX, 2) == 1, "what glibc knows was refused");
    require(mallopt(-1000, 2) == 0, "an unknown parameter was accepted");
    malloc_stats();
    (void)mallinfo2();
}
#endif

static const check checks[] = {
    {"realloc keeps the contents growing and shrinking",
     realloc_keeps_the_contents_growing_and_shrinking, 0},
    {"realloc byte by byte keeps the contents", realloc_byte_by_byte_keeps_the_contents, 0},
    {"calloc gives zeroes from used memory", calloc_gives_zeroes_from_used_memory, 60},
    {"calloc of many small ones gives zeroes", calloc_of_many_small_ones_gives_zeroes, 0},
    {"the usable size is at least the size, and all of it is writable",
     usable_size_is_at_least_the_size_and_writable, 0},
    {"the usable size of large blocks is writable", usable_size_of_large_blocks_is_writable, 0},
    {"the usable size of NULL is zero", usable_size_of_null_is_zero, 0},
    {"realloc to the usable size keeps all of it", realloc_within_the_usable_size_keeps_all_of_it,
     0},
    {"free(NULL) does nothing", free_of_null_does_nothing, 0},
    {"free keeps errno for every size up to 200 MiB", free_keeps_errno, 0},
    {"free of many blocks keeps errno", free_of_many_keeps_errno, 0},
    {"an allocation that succeeds keeps errno", a_successful_allocation_keeps_errno, 0},
    {"malloc_trim gives memory back to the system", trim_gives_memory_back, 0},
#ifdef __GLIBC__
    {"mallinfo2 counts what is in use", mallinfo2_counts_what_is_in_use, 0},
    {"malloc_info writes a document", malloc_info_writes_a_document, 0},
    {"mallopt and malloc_stats can be called", mallopt_and_malloc_stats_can_be_called, 0},
#endif
};

int main(int argc, char **argv)
{
    return run_checks(checks, COUNT(checks), argc, argv);
}
