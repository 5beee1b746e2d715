/*
 * Prints what a page fault takes, in nanoseconds: the first write to a page that was given back to
 * the system, as hz does with MADV_DONTNEED.
 *
 *     cc -O2 experiments/scale/fault.c -o fault && ./fault
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGES = 4096, ROUNDS = 16 };

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    volatile char *memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    double all_ns = 0.0;
    for (int round = 0; round <= ROUNDS; round++) {
        const double start = now_ns();
        for (size_t i = 0; i < PAGES; i++) memory[i * page] = 1;
        if (round > 0) all_ns += now_ns() - start; /* the first time, the host may fault, too */
        (void)madvise((void *)memory, PAGES * page, MADV_DONTNEED);
    }
    (void)printf("%.0f\n", all_ns / ROUNDS / PAGES);
    return 0;
}
