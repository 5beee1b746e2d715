/*
 * The nodes of a machine: groups of CPUs that have memory of their own (NUMA). Only those count
 * whose CPUs the process may use, so a process that is bound to one node sees one. They are
 * numbered from 0 in the order of the system's own numbers, which may have gaps.
 *
 * A thread asks the C library for its CPU, and a table says the node. Mostly that is no system
 * call: the kernel keeps the number where the thread can read it. A sandbox that ends a process for
 * system calls that it does not know rarely knows getcpu.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "os.h"
#include "text.h"
#include "types.h"

#define DIRECTORY "/sys/devices/system/node"

enum {
    NODE_IDS = 1024,   /* the kernel numbers nodes below this */
    LIST_BYTES = 4096, /* no list of nodes, or of a node's CPUs, is longer */
    PATH_BYTES = sizeof DIRECTORY "/node/cpulist" + 20,
};

static uint8_t nodes[HZ_OS_CPU_IDS]; /* by CPU; nodes beyond HZ_NODES_MAX share one */
static uint32_t count = 1;

/* Reads the next range of a list like "0-3,8,10-11", and moves behind it; false at the end. Numbers
 * from `most` on are left out. */
static bool range_next(const char **list, unsigned long most, unsigned long *first,
                       unsigned long *end)
{
    char *rest;
    unsigned long last = *first = strtoul(*list, &rest, 10);
    if (rest == *list) return false;
    if (*rest == '-') last = strtoul(rest + 1, &rest, 10);
    *end = last < most ? last + 1 : most;
    *list = *rest == ',' ? rest + 1 : rest;
    return true;
}

static bool is_any_usable(const char *list, const hz_os_cpu_set *cpus)
{
    for (unsigned long cpu, end; range_next(&list, HZ_OS_CPU_IDS, &cpu, &end);) {
        for (; cpu < end; cpu++) {
            if (hz_os_has_cpu(cpus, cpu)) return true;
        }
    }
    return false;
}

static void put_number(hz_text *text, unsigned long number)
{
    if (number > 9) put_number(text, number / 10);
    hz_text_put(text, (const char[]){(char)('0' + number % 10), '\0'});
}

/* Notes the CPUs of a node, if the process may use any of them. */
static bool node_note(unsigned long id, const hz_os_cpu_set *cpus, uint8_t number)
{
    static char text[LIST_BYTES]; /* the stack of a thread may be short */
    char start[PATH_BYTES];
    hz_text path = {start, sizeof start, 0};
    hz_text_put(&path, DIRECTORY "/node");
    put_number(&path, id);
    hz_text_put(&path, "/cpulist");
    if (hz_text_read(start, text, sizeof text) == 0 || !is_any_usable(text, cpus)) return false;
    const char *list = text;
    for (unsigned long cpu, end; range_next(&list, HZ_OS_CPU_IDS, &cpu, &end);) {
        for (; cpu < end; cpu++) nodes[cpu] = number;
    }
    return true;
}

static uint32_t nodes_note(const char *list, const hz_os_cpu_set *cpus)
{
    uint32_t found = 0;
    for (unsigned long id, end; range_next(&list, NODE_IDS, &id, &end);) {
        for (; id < end; id++) found += node_note(id, cpus, (uint8_t)(found % HZ_NODES_MAX));
    }
    return found;
}

uint32_t hz_os_nodes(void)
{
    static char text[LIST_BYTES];
    char start[4];
    hz_os_cpu_set cpus;
    const size_t length = hz_text_read(DIRECTORY "/has_cpu", start, sizeof start);
    if (length == 0 || start[1] == '\n') return 1; /* mostly one node */
    if (hz_text_read(DIRECTORY "/has_cpu", text, sizeof text) == 0 || !hz_os_affinity(&cpus))
        return 1;
    const uint32_t found = nodes_note(text, &cpus);
    count = found < HZ_NODES_MAX ? found : HZ_NODES_MAX;
    return count > 0 ? count : (count = 1);
}

uint32_t hz_os_node(void)
{
    const int saved = errno;
    const int cpu = count > 1 ? sched_getcpu() : 0;
    errno = saved;
    return cpu >= 0 && cpu < HZ_OS_CPU_IDS ? nodes[cpu] : 0;
}
