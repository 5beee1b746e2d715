/*
 * How many CPUs and how much memory the process may use: those of its affinity and those of the
 * machine, but no more than the limits of its cgroup and of every cgroup above it.
 *
 * A cgroup is a directory. /proc/self/cgroup says which one is the process's, below the root of its
 * hierarchy; there may be several: version 2, version 1 with the controller, or both. They are
 * looked for only where systems mount them, as every process asks for its memory, and a list of
 * mounts may be long. In a container the root may be the process's own cgroup: then what lies below
 * is not found, and its limit is that of the root.
 */
#include <stdlib.h>
#include <string.h>

#include "os.h"
#include "os_call.h"
#include "text.h"

#define ROOT "/sys/fs/cgroup"

enum { OWN_BYTES = 8192, DIRECTORY_BYTES = 1024 };

/* Whether a comma-separated list has a word. */
static bool has_word(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (; list != NULL; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, word, length) == 0 && (list[length] == ',' || list[length] == '\0'))
            return true;
    }
    return false;
}

static bool read_in(const char *directory, const char *name, char text[64])
{
    char start[DIRECTORY_BYTES + 32];
    hz_text path = {start, sizeof start, 0};
    hz_text_put(&path, directory);
    hz_text_put(&path, "/");
    hz_text_put(&path, name);
    return hz_text_read(start, text, 64) > 0;
}

/* What a directory allows, in units of its own; UINT64_MAX: no limit. */
typedef uint64_t limit_in(const char *directory, bool is_v2);

/* The quota, and the time in which it may be used up; no quota is "max" or -1. */
static uint64_t cpus_in(const char *directory, bool is_v2)
{
    char text[64], *end = text;
    if (!read_in(directory, is_v2 ? "cpu.max" : "cpu.cfs_quota_us", text)) return UINT64_MAX;
    const long long quota = strtoll(text, &end, 10);
    if (end == text || quota <= 0) return UINT64_MAX;
    if (!is_v2 && !read_in(directory, "cpu.cfs_period_us", end = text)) return UINT64_MAX;
    const long long period = strtoll(end, NULL, 10);
    return period > 0 ? (uint64_t)(quota / period + (quota % period != 0)) : UINT64_MAX;
}

static uint64_t memory_in(const char *directory, bool is_v2)
{
    char text[64], *end = text;
    if (!read_in(directory, is_v2 ? "memory.max" : "memory.limit_in_bytes", text))
        return UINT64_MAX;
    const uint64_t bytes = strtoull(text, &end, 10);
    return end != text ? bytes : UINT64_MAX; /* "max" */
}

/* The least limit of a cgroup and of all above it. */
static uint64_t least_above(const char *controller, const char *own, bool is_v2, limit_in *limit)
{
    char directory[DIRECTORY_BYTES];
    uint64_t least = UINT64_MAX;
    hz_text path = {directory, sizeof directory, 0};
    hz_text_put(&path, is_v2 ? ROOT : ROOT "/");
    if (!is_v2) hz_text_put(&path, controller);
    const size_t top = path.length;
    if (own[1] != '\0') hz_text_put(&path, own);
    for (;;) {
        const uint64_t found = limit(directory, is_v2);
        if (found < least) least = found;
        if (directory[top] == '\0') return least;
        *strrchr(directory, '/') = '\0';
    }
}

enum { CPUS, MEMORY, LIMITS };
static const struct {
    const char *controller;
    limit_in *limit;
} limits[LIMITS] = {[CPUS] = {"cpu", cpus_in}, [MEMORY] = {"memory", memory_in}};

/* The same of all hierarchies: lines "number:controllers:path". Version 2 has no controllers. */
static void least_of_all(uint64_t least[LIMITS])
{
    static char lines[OWN_BYTES]; /* the stack of a thread may be short */
    char *rest = NULL;
    (void)hz_text_read("/proc/self/cgroup", lines, sizeof lines);
    for (char *line = lines; (line = strtok_r(line, "\n", &rest)) != NULL; line = NULL) {
        char *controllers = strchr(line, ':');
        char *own = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (own == NULL) continue;
        *own++ = '\0';
        const bool is_v2 = controllers[1] == '\0';
        for (size_t i = 0; i < LIMITS; i++) {
            if (!is_v2 && !has_word(controllers + 1, limits[i].controller)) continue;
            const uint64_t found = least_above(limits[i].controller, own, is_v2, limits[i].limit);
            if (found < least[i]) least[i] = found;
        }
    }
}

/* Without the C library's cpu_set_t of 1024 CPUs: the kernel refuses a set that is too short. */
bool hz_os_affinity(hz_os_cpu_set *cpus)
{
    const long bytes = HZ_OS_CALL(SYS_sched_getaffinity, 0, sizeof *cpus, (long)cpus);
    if (bytes > 0) memset((char *)cpus + bytes, 0, sizeof *cpus - (size_t)bytes);
    return bytes > 0;
}

static uint32_t cpus_allowed(void)
{
    hz_os_cpu_set set;
    uint32_t cpus = 0;
    if (!hz_os_affinity(&set)) return 1;
    for (size_t i = 0; i < sizeof set.words / sizeof set.words[0]; i++)
        cpus += (uint32_t)__builtin_popcountl(set.words[i]);
    return cpus > 0 ? cpus : 1;
}

uint32_t hz_os_allowed(uint64_t *memory_bytes)
{
    uint64_t least[LIMITS] = {cpus_allowed(), hz_os_memory_bytes()};
    least_of_all(least);
    *memory_bytes = least[MEMORY];
    return (uint32_t)least[CPUS];
}
