/*
 * Prints what the way of a cache line from one CPU to another takes now, in nanoseconds: two threads
 * throw a ball, which is a number in one line. In a virtual machine that changes, as the host moves
 * its CPUs.
 *
 *     cc -O2 -pthread experiments/scale/line.c -o line && ./line
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { PASSES = 20000, PASSES_AT_ONCE = 500 };

static _Alignas(64) _Atomic uint32_t ball;
static double pass_ns = 1e9;

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void pin(size_t cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static void *catch_ball(void *turn)
{
    const uint32_t mine = (uint32_t)(uintptr_t)turn;
    pin(mine);
    double start = now_ns();
    for (uint32_t i = 1; i <= PASSES; i++) {
        while (atomic_load_explicit(&ball, memory_order_acquire) % 2 != mine) continue;
        atomic_fetch_add_explicit(&ball, 1, memory_order_acq_rel);
        if (i % PASSES_AT_ONCE != 0 || mine != 0) continue;
        pass_ns = least(pass_ns, (now_ns() - start) / (2.0 * PASSES_AT_ONCE));
        start = now_ns();
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) (void)pthread_create(&threads[i], NULL, catch_ball, (void *)i);
    for (size_t i = 0; i < 2; i++) (void)pthread_join(threads[i], NULL);
    (void)printf("%.0f\n", pass_ns);
    return 0;
}
