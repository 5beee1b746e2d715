/*
 * What every part of hz-bench needs from the system: memory of its own, and the words with which it
 * gives up.
 */
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"

/* Where this thread's mappings are noted, or NULL. */
static _Thread_local hz_mapped *noted;

/* Zeroed memory of the harness, mapped apart from the allocator under test; it lives as long as the
 * process, or until hz_harness_give_back() where it was noted. */
void *hz_harness_alloc(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) hz_fail_memory(bytes);
    if (noted != NULL) {
        if (noted->count == HZ_LENGTH(noted->parts)) hz_fail("a workload maps more than is noted");
        noted->parts[noted->count].at = memory;
        noted->parts[noted->count++].bytes = bytes;
    }
    return memory;
}

/* From now on this thread's mappings are noted in `mapped`; NULL: no more. */
void hz_harness_note(hz_mapped *mapped)
{
    noted = mapped;
}

/* Unmaps what was noted. */
void hz_harness_give_back(hz_mapped *mapped)
{
    while (mapped->count > 0) {
        mapped->count--;
        (void)munmap(mapped->parts[mapped->count].at, mapped->parts[mapped->count].bytes);
    }
}

/* Says on stdout that the process rests, and waits for a line on stdin, or for its end. It asks no
 * allocator for anything. */
void hz_harness_rest(void)
{
    static const char text[] = "hz-bench: at rest\n";
    char byte = 0;
    if (write(STDOUT_FILENO, text, sizeof text - 1) < 0) return;
    while (byte != '\n') {
        const ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got == 0 || (got < 0 && errno != EINTR)) return;
    }
}

/* CPUs that this process may use. */
unsigned hz_cpu_count(void)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? (unsigned)CPU_COUNT(&cpus) : 1;
}

void hz_fail_memory(size_t bytes)
{
    hz_fail("no memory: a request of %zu bytes was refused", bytes);
}

/* The least power of two that is not less than `least`. */
size_t hz_power_of_two(size_t least)
{
    size_t power = 1;
    while (power < least) power *= 2;
    return power;
}

/* --- scattering ------------------------------------------------------------------------------ */

/* Prepares `scatter` for that many players. */
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

/* The players sleep, or are about to: each will wake on the CPU that is drawn for it here. */
static void place_all(hz_scatter *scatter)
{
    const unsigned first = hz_scale(hz_low(hz_random(&scatter->rng)), scatter->cpus);
    hz_shuffle(&scatter->rng, scatter->order, scatter->places);
    for (unsigned i = 0; i < scatter->players; i++) {
        const unsigned cpu = scatter->cpu_list[(first + scatter->order[i]) % scatter->cpus];
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(atomic_load(&scatter->threads[i]), sizeof one, &one);
    }
}

/* The calling thread begins to wait for a turn. The last one that does places them all. */
void hz_scatter_enter(hz_scatter *scatter, unsigned player)
{
    if (scatter->cpus == 0) return;
    atomic_store(&scatter->threads[player], gettid());
    if (atomic_fetch_add(&scatter->waiting, 1) + 1 == scatter->players) place_all(scatter);
}

/* The calling thread has been given a turn, and is free to go where it likes. */
void hz_scatter_leave(hz_scatter *scatter)
{
    if (scatter->cpus == 0) return;
    (void)sched_setaffinity(0, sizeof scatter->allowed, &scatter->allowed);
    atomic_fetch_sub(&scatter->waiting, 1);
}
