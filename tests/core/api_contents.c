/* What is in blocks and what free leaves alone: contents, usable sizes and errno. */
#include "check.h"

#include <errno.h>
#include <malloc.h>
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

CHECK_IN(60, "calloc gives zeroes from used memory")
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

CHECK("the usable size is at least the size, and all of it is writable")
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

CHECK("the usable size of NULL is zero")
{
    require(malloc_usable_size(NULL) == 0, "it is not");
}

CHECK("free(NULL) does nothing")
{
    errno = 1234;
    free(NULL);
    require(errno == 1234, "errno became %d", errno);
}

CHECK("free keeps errno for every size up to 200 MiB")
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

CHECK("an allocation that succeeds keeps errno")
{
    errno = 1234;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        free(malloc(sizes[i]));
        free(calloc(1, sizes[i]));
        require(errno == 1234, "%zu bytes set errno to %d", sizes[i], errno);
    }
}

CHECK("malloc_trim gives memory back to the system")
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
