/*
 * What three things cost on this machine, in nanoseconds, as JSON: a page fault, the way of a cache
 * line from one CPU to another, and a thread that gives its CPU to another one.
 *
 *     cc -O2 -pthread experiments/scale/costs.c -o costs && ./costs
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGES = 16384, PAGE_BYTES = 4096, PASSES = 200000, YIELDS = 100000 };

static _Alignas(64) _Atomic uint32_t ball;

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

/* Touches fresh pages, and again after they were given back. */
static void *touch(void *result)
{
    unsigned char *memory = mmap(NULL, (size_t)PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const double start = now_ns();
    for (size_t i = 0; i < PAGES; i++) memory[i * PAGE_BYTES] = 1;
    *(double *)result = (now_ns() - start) / PAGES;
    (void)munmap(memory, (size_t)PAGES * PAGE_BYTES);
    return NULL;
}

static void *catch_ball(void *turn)
{
    const uint32_t mine = (uint32_t)(uintptr_t)turn;
    pin((int)mine);
    for (uint32_t i = 0; i < PASSES; i++) {
        while (atomic_load_explicit(&ball, memory_order_acquire) % 2 != mine) continue;
        atomic_fetch_add_explicit(&ball, 1, memory_order_acq_rel);
    }
    return NULL;
}

static void *give_way(void *unused)
{
    (void)unused;
    pin(0);
    for (int i = 0; i < YIELDS; i++) sched_yield();
    return NULL;
}

static double in_two_threads(void *(*run)(void *), void *first, void *second)
{
    pthread_t a, b;
    const double start = now_ns();
    (void)pthread_create(&a, NULL, run, first);
    (void)pthread_create(&b, NULL, run, second);
    (void)pthread_join(a, NULL);
    (void)pthread_join(b, NULL);
    return now_ns() - start;
}

int main(void)
{
    double alone, one, two;
    (void)touch(&alone);
    (void)touch(&alone);
    (void)in_two_threads(touch, &one, &two);
    const double pass = in_two_threads(catch_ball, (void *)0, (void *)1) / (2.0 * PASSES);
    const double way = in_two_threads(give_way, NULL, NULL) / (2.0 * YIELDS);
    (void)printf("{\"fault_ns\": %.0f, \"fault_beside_another_ns\": %.0f, \"line_ns\": %.0f, "
                 "\"switch_ns\": %.0f}\n",
                 alone, (one + two) / 2, pass, way);
    return 0;
}
