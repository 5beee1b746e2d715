/*
 * What some things cost on this machine, in nanoseconds, as JSON: a page fault, the way of a cache
 * line from one CPU to another, a thread that gives its CPU to another one; and, by the number of
 * threads, what it costs to reach a random block of all that larson's threads have together: to
 * read its slot, and to write to each of its lines that hz-bench writes.
 *
 *     cc -O2 -pthread experiments/scale/costs.c -o costs && ./costs
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGES = 16384, PAGE_BYTES = 4096, PASSES = 20000, PASSES_AT_ONCE = 500, YIELDS = 20000 };

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

/* Touches fresh pages. Of parts of 1 MiB the fastest counts: others may use the machine. */
static void *touch(void *result)
{
    enum { PART = 256 };
    unsigned char *memory = mmap(NULL, (size_t)PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double ns = 1e9;
    for (size_t first = 0; first < PAGES; first += PART) {
        const double start = now_ns();
        for (size_t i = first; i < first + PART; i++) memory[i * PAGE_BYTES] = 1;
        ns = least(ns, (now_ns() - start) / PART);
    }
    *(double *)result = ns;
    (void)munmap(memory, (size_t)PAGES * PAGE_BYTES);
    return NULL;
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

typedef struct slot {
    unsigned char *block;
    uint64_t bytes;
} slot;

static slot *slots;
static uint32_t slot_count; /* of each thread */

static uint64_t mixed(uint64_t random)
{
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random;
}

/* Draws slots and writes to a line in each 4 KiB of their blocks. As in a free of hz nothing reads
 * the block, so the write waits in the store buffer. Beside that it computes as many instructions
 * as hz-bench and hz take for an operation: so as few of them wait for memory at the same time. */
static void *reach(void *result)
{
    enum { STEPS = 5000, TRIES = 300, CHAINS = 4, ROUNDS = 4 };
    uint64_t random = 88172645463325252u + (uintptr_t)result, chains[CHAINS] = {1, 2, 3, 4};
    const slot *own = slots + slot_count * (uint32_t) * (double *)result;
    double ns = 1e9;
    for (int i = 0; i < TRIES; i++) {
        const double start = now_ns();
        for (int step = 0; step < STEPS; step++) {
            random = mixed(random);
            const slot *one = &own[(uint32_t)random % slot_count];
            for (size_t at = 0; at < one->bytes; at += PAGE_BYTES)
                one->block[at + 8] = (unsigned char)step;
            for (int j = 0; j < CHAINS * ROUNDS; j++) {
                chains[j % CHAINS] = mixed(chains[j % CHAINS]);
                __asm__ volatile("" : "+r"(chains[j % CHAINS]));
            }
        }
        ns = least(ns, (now_ns() - start) / STEPS);
    }
    *(double *)result = ns;
    return NULL;
}

/* Of blocks of one size, `apart` bytes from each other; with more than one thread, on two CPUs. */
static double reach_ns(uint32_t blocks, size_t apart, int threads)
{
    double one = 0, two = 1; /* at first, which part of the slots is theirs */
    unsigned char *memory = malloc(blocks * apart);
    slots = malloc(blocks * sizeof *slots);
    slot_count = threads == 1 ? blocks : blocks / 2;
    if (slots == NULL || memory == NULL) exit(1);
    for (uint32_t i = 0; i < blocks; i++) {
        slots[i] = (slot){memory + i * apart, apart};
        for (size_t at = 0; at < apart; at += PAGE_BYTES) slots[i].block[at + 8] = 1;
    }
    if (threads == 1)
        (void)reach(&one);
    else
        (void)in_two_threads(reach, &one, &two);
    free(memory);
    free(slots);
    return threads == 1 ? one : (one + two) / 2;
}

static void print_reach(const char *name, uint32_t blocks, size_t apart, int most)
{
    (void)printf(",\n \"%s\": {", name);
    for (int threads = 1; threads <= most; threads *= 2)
        (void)printf("%s\"%d\": %.1f", threads > 1 ? ", " : "", threads,
                     reach_ns(blocks * (uint32_t)threads, apart, threads));
    (void)printf("}");
}

int main(void)
{
    double alone, one, two;
    (void)touch(&alone);
    (void)touch(&alone);
    (void)in_two_threads(touch, &one, &two);
    (void)in_two_threads(catch_ball, (void *)0, (void *)1);
    const double way = in_two_threads(give_way, NULL, NULL) / (2.0 * YIELDS);
    (void)printf("{\"fault_ns\": %.0f, \"fault_beside_another_ns\": %.0f, \"line_ns\": %.0f, "
                 "\"switch_ns\": %.0f",
                 alone, (one + two) / 2, pass_ns, way);
    print_reach("larson", 10000, 520, 64);
    print_reach("larson@mid", 1000, 17408, 32);
    (void)printf("}\n");
    return 0;
}
