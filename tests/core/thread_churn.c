/*
 * Threads come and go, and what they leave behind does not add up. TEST_THREADS_TOTAL is the number
 * of threads.
 */
#include "check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t growth_bytes_max = 64 * 1024;
enum { MAPPINGS_MORE_MAX = 4, TOGETHER = 8 };

/* What a process has, measured without touching the heap more than the measuring does. */
typedef struct holdings {
    size_t resident;
    size_t address_space;
    size_t mappings;
} holdings;

static size_t address_space_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    require(file != NULL && fscanf(file, "%lu", &pages) == 1, "cannot read /proc/self/statm");
    (void)fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static holdings holdings_now(void)
{
    return (holdings){resident_bytes(), address_space_bytes(), mapping_count()};
}

/* Frees the block that the thread before it left, and leaves one; uses several classes and a large
 * block. */
static void *come_and_go(void *left)
{
    void *blocks[50];
    free(left);
    for (size_t i = 0; i < COUNT(blocks); i++) {
        blocks[i] = malloc(16 + i * i * 3);
        *(volatile char *)blocks[i] = 1;
    }
    for (size_t i = 1; i < COUNT(blocks); i++) free(blocks[i]);
    return blocks[0];
}

static void require_no_growth(const holdings *before, size_t threads)
{
    const holdings after = holdings_now();
    require(after.resident <= before->resident + growth_bytes_max,
            "%zu threads: resident memory %zu -> %zu", threads, before->resident, after.resident);
    require(after.address_space <= before->address_space, "%zu threads: address space %zu -> %zu",
            threads, before->address_space, after.address_space);
    require(after.mappings <= before->mappings + MAPPINGS_MORE_MAX,
            "%zu threads: mappings %zu -> %zu", threads, before->mappings, after.mappings);
}

CHECK_IN(300, "threads in sequence do not add up")
{
    const size_t total = number_chosen("TEST_THREADS_TOTAL", 20000);
    holdings before = {0, 0, 0};
    void *left = NULL;
    for (size_t i = 0; i < total; i++) {
        const pthread_t thread = thread_start(come_and_go, left);
        (void)pthread_join(thread, &left);
        if (i == 1000) before = holdings_now();
    }
    require_no_growth(&before, total);
    free(left);
}

CHECK_IN(300, "threads in groups of eight do not add up")
{
    const size_t total = number_chosen("TEST_THREADS_TOTAL", 20000) / TOGETHER;
    holdings before = {0, 0, 0};
    void *left[TOGETHER] = {NULL};
    for (size_t i = 0; i < total; i++) {
        pthread_t threads[TOGETHER];
        for (size_t t = 0; t < TOGETHER; t++) {
            threads[t] = thread_start(come_and_go, left[t]);
        }
        for (size_t t = 0; t < TOGETHER; t++)
            (void)pthread_join(threads[t], &left[(t + 1) % TOGETHER]);
        if (i == total / 2) before = holdings_now();
    }
    const holdings after = holdings_now();
    require(after.resident <= before.resident + 16 * growth_bytes_max, "resident memory %zu -> %zu",
            before.resident, after.resident);
}
