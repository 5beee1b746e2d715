/*
 * What every part of hz-bench needs from the system: memory of its own, and the words with which it
 * gives up.
 */
#include <sched.h>
#include <sys/mman.h>

#include "bench.h"

/* Zeroed memory of the harness, mapped apart from the allocator under test; it lives as long as the
 * process. */
void *hz_harness_alloc(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) hz_fail_memory(bytes);
    return memory;
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
