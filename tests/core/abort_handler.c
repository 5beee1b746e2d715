/*
 * A handler of SIGABRT may allocate and free, wherever hz has found what ends the program.
 */
#include "check.h"

#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 7, COUNT_MOST = 3000, SECONDS = 10 };

static void allocate_and_end(int number)
{
    void *blocks[100] = {NULL};
    (void)number;
    for (size_t i = 0; i < 20000; i++) {
        void **at = &blocks[i % 100];
        free(*at);
        *at = malloc(i % 7 == 0 ? i * 50 : i % 3000);
        if (*at == NULL) _exit(1);
    }
    _exit(DONE);
}

static void require_handler_ends(void (*offend)(void *), size_t size, const char *what)
{
    ending end;
    run_apart(offend, &size, SECONDS, &end);
    require(end.signal == 0 && end.status == DONE, "%s of %zu bytes: signal %d, status %d, said %s",
            what, size, end.signal, end.status, end.said);
    require(strstr(end.said, "hz: ") != NULL, "%s: it said nothing", what);
}

static void each_size(void (*offend)(void *), const char *what)
{
    static const size_t sizes[] = {16, 64, 1000, 20000, 200000};
    for (size_t i = 0; i < COUNT(sizes); i++) require_handler_ends(offend, sizes[i], what);
}

static void *fill_and_free(size_t size)
{
    static void *blocks[COUNT_MOST];
    for (size_t i = 0; i < COUNT_MOST; i++) blocks[i] = malloc(size);
    for (size_t i = 0; i < COUNT_MOST; i++) free(blocks[i]);
    return blocks[20];
}

static void free_twice_and_trim(void *size)
{
    (void)signal(SIGABRT, allocate_and_end);
    free(fill_and_free(*(const size_t *)size));
    (void)malloc_trim(0);
    void *blocks[COUNT_MOST];
    for (size_t i = 0; i < COUNT_MOST; i++) blocks[i] = malloc(*(const size_t *)size);
    (void)blocks;
}

static void free_twice_and_allocate(void *size)
{
    (void)signal(SIGABRT, allocate_and_end);
    void *block = malloc(*(const size_t *)size);
    free(block);
    free(block);
    for (size_t i = 0; i < COUNT_MOST; i++) (void)malloc(*(const size_t *)size);
}

static void free_within_a_block(void *size)
{
    (void)signal(SIGABRT, allocate_and_end);
    char *block = malloc(*(const size_t *)size);
    free(block + 8);
}

static void resize_a_free_block(void *size)
{
    (void)signal(SIGABRT, allocate_and_end);
    free(realloc(fill_and_free(*(const size_t *)size), 10));
}

CHECK_IN(120, "a handler of SIGABRT may allocate, whatever hz has found")
{
    each_size(free_twice_and_trim, "a double free that a trim finds");
    each_size(free_twice_and_allocate, "a double free that a malloc finds");
    each_size(free_within_a_block, "a free within a block");
    each_size(resize_a_free_block, "a realloc of a free block");
}
