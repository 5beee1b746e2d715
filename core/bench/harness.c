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
