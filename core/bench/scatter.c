/*
 * Scattering: see scatter.h.
 */
#include "scatter.h"

#include <stdatomic.h>
#include <unistd.h>

#include "bench.h"

void hz_scatter_init(hz_scatter *scatter, unsigned players, uint64_t seed)
{
    *scatter = (hz_scatter){.players = players, .rng = seed};
    if (sched_getaffinity(0, sizeof scatter->allowed, &scatter->allowed) != 0) return;
    scatter->cpus = (unsigned)CPU_COUNT(&scatter->allowed);
    scatter->places = players > scatter->cpus ? players : scatter->cpus;
    scatter->cpu_list = hz_harness_alloc(scatter->cpus * sizeof *scatter->cpu_list);
    scatter->order = hz_harness_alloc(scatter->places * sizeof *scatter->order);
    scatter->threads = hz_harness_alloc(players * sizeof *scatter->threads);
    for (unsigned cpu = 0, found = 0; found < scatter->cpus; cpu++)
        if (CPU_ISSET(cpu, &scatter->allowed)) scatter->cpu_list[found++] = cpu;
}

/* Puts 0..places-1 into `order`, shuffled. */
static void scatter_shuffle(hz_scatter *scatter)
{
    for (unsigned i = 0; i < scatter->places; i++) {
        const unsigned j = hz_scale(hz_low(hz_random(&scatter->rng)), i + 1);
        scatter->order[i] = scatter->order[j];
        scatter->order[j] = i;
    }
}

/* The players sleep, or are about to: each will wake on the CPU that is drawn for it here. */
static void place_all(hz_scatter *scatter)
{
    const unsigned first = hz_scale(hz_low(hz_random(&scatter->rng)), scatter->cpus);
    scatter_shuffle(scatter);
    for (unsigned i = 0; i < scatter->players; i++) {
        const unsigned cpu = scatter->cpu_list[(first + scatter->order[i]) % scatter->cpus];
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(atomic_load(&scatter->threads[i]), sizeof one, &one);
    }
}

void hz_scatter_enter(hz_scatter *scatter, unsigned player)
{
    if (scatter->cpus == 0) return;
    atomic_store(&scatter->threads[player], gettid());
    if (atomic_fetch_add(&scatter->waiting, 1) + 1 == scatter->players) place_all(scatter);
}

void hz_scatter_leave(hz_scatter *scatter)
{
    if (scatter->cpus == 0) return;
    (void)sched_setaffinity(0, sizeof scatter->allowed, &scatter->allowed);
    atomic_fetch_sub(&scatter->waiting, 1);
}
