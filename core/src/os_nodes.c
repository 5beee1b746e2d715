/*
 * The nodes of a machine: groups of CPUs that have memory of their own (NUMA). Only those count
 * whose CPUs the process may use, so a process that is bound to one node sees one. They are
 * numbered from 0 in the order of the system's own numbers, which may have gaps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os.h"
#include "types.h"

#define DIRECTORY "/sys/devices/system/node"

enum {
    NODE_IDS = 1024,   /* the kernel numbers nodes below this */
    NODES_BYTES = 256, /* no list of nodes is longer */
    CPUS_BYTES = 4096, /* no list of a node's CPUs is longer */
};

static uint8_t numbers[NODE_IDS]; /* by the system's number; nodes beyond HZ_NODES_MAX share one */
static uint32_t count = 1;

/* Reads the next range of a list like "0-3,8,10-11", and moves behind it; false at the end. */
static bool range_next(const char **list, unsigned long *first, unsigned long *last)
{
    char *end;
    *first = *last = strtoul(*list, &end, 10);
    if (end == *list) return false;
    if (*end == '-') *last = strtoul(end + 1, &end, 10);
    *list = *end == ',' ? end + 1 : end;
    return true;
}

static bool may_use(unsigned long node, const hz_os_cpu_set *cpus)
{
    static char text[CPUS_BYTES]; /* the stack of a thread may be short */
    char path[sizeof DIRECTORY "/node/cpulist" + 20];
    unsigned long first, last;
    snprintf(path, sizeof path, DIRECTORY "/node%lu/cpulist", node);
    if (hz_os_read_file(path, text, sizeof text) == 0) return false;
    for (const char *list = text; range_next(&list, &first, &last);) {
        for (unsigned long cpu = first; cpu <= last && cpu < HZ_OS_CPU_IDS; cpu++) {
            if (hz_os_has_cpu(cpus, cpu)) return true;
        }
    }
    return false;
}

uint32_t hz_os_nodes(void)
{
    char text[NODES_BYTES];
    unsigned long first, last;
    hz_os_cpu_set cpus;
    uint32_t found = 0;
    const size_t length = hz_os_read_file(DIRECTORY "/has_cpu", text, sizeof text);
    if (length == 0 || text[1] == '\n' || !hz_os_affinity(&cpus)) return 1; /* mostly one node */
    for (const char *list = text; range_next(&list, &first, &last);) {
        for (unsigned long node = first; node <= last && node < NODE_IDS; node++) {
            if (may_use(node, &cpus)) numbers[node] = (uint8_t)(found++ % HZ_NODES_MAX);
        }
    }
    count = found < HZ_NODES_MAX ? found : HZ_NODES_MAX;
    return count > 0 ? count : (count = 1);
}

uint32_t hz_os_node(void)
{
    unsigned cpu, node;
    if (count == 1 || syscall(SYS_getcpu, &cpu, &node, NULL) != 0) return 0;
    return node < NODE_IDS ? numbers[node] : 0;
}
