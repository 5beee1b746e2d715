/*
 * What /proc tells: see procfs.h.
 */
#include "procfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KB = 1024, FILE_ROOM = 16 * 1024, STAT_ROOM = 1024, PATH_ROOM = 64, NS_PER_S = 1000000000 };

size_t hz_read_start(const char *path, char *text, size_t size)
{
    size_t used = 0;
    ssize_t got;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && used + 1 < size && (got = read(fd, text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    if (fd >= 0) (void)close(fd);
    text[used] = '\0';
    return used;
}

/* The number that follows `field` in a file, or -1. */
static int64_t read_field(const char *path, const char *field)
{
    char text[FILE_ROOM];
    if (hz_read_start(path, text, sizeof text) == 0) return -1;
    const char *found = strstr(text, field);
    return found != NULL ? strtoll(found + strlen(field), NULL, 10) : -1;
}

static void process_path(char *path, pid_t pid, const char *file)
{
    (void)snprintf(path, PATH_ROOM, "/proc/%d/%s", (int)pid, file);
}

int64_t hz_proc_rss_kb(pid_t pid)
{
    char path[PATH_ROOM];
    char text[256];
    process_path(path, pid, "statm");
    if (hz_read_start(path, text, sizeof text) == 0) return -1;
    const char *second = strchr(text, ' ');
    return second != NULL ? strtoll(second, NULL, 10) * (sysconf(_SC_PAGESIZE) / KB) : -1;
}

/* The same of a file of a process. */
static int64_t process_field(pid_t pid, const char *file, const char *field)
{
    char path[PATH_ROOM];
    process_path(path, pid, file);
    return read_field(path, field);
}

int64_t hz_proc_pss_kb(pid_t pid)
{
    return process_field(pid, "smaps_rollup", "\nPss:");
}

int64_t hz_proc_status(pid_t pid, const char *field)
{
    return process_field(pid, "status", field);
}

int64_t hz_proc_steal_ticks(void)
{
    char text[512];
    if (hz_read_start("/proc/stat", text, sizeof text) == 0 || strncmp(text, "cpu ", 4) != 0)
        return -1;
    char *cursor = text + 4;
    int64_t field = -1;
    for (int i = 0; i < 8; i++) /* user nice system idle iowait irq softirq steal */
        field = strtoll(cursor, &cursor, 10);
    return field;
}

int64_t hz_proc_pressure_us(void)
{
    return read_field("/proc/pressure/cpu", "total=");
}

int64_t hz_proc_oom_kills(void)
{
    return read_field("/proc/vmstat", "\noom_kill ");
}

/* --- usage ----------------------------------------------------------------------------------- */

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

double hz_usage_cpu_s(const struct rusage *usage)
{
    return seconds_of(usage->ru_utime) + seconds_of(usage->ru_stime);
}

/* --- descendants ----------------------------------------------------------------------------- */

/* Appends the children of one thread of a process. */
static size_t append_children(const char *path, pid_t *pids, size_t used, size_t room)
{
    char text[FILE_ROOM];
    if (hz_read_start(path, text, sizeof text) == 0) return used;
    char *cursor = text;
    for (;;) {
        char *end;
        const long pid = strtol(cursor, &end, 10);
        if (end == cursor || used == room) return used;
        pids[used++] = (pid_t)pid;
        cursor = end;
    }
}

/* Appends the children of all threads of a process. */
static size_t append_all_children(pid_t parent, pid_t *pids, size_t used, size_t room)
{
    char path[PATH_ROOM];
    process_path(path, parent, "task");
    DIR *threads = opendir(path);
    if (threads == NULL) return used;
    for (const struct dirent *entry; (entry = readdir(threads)) != NULL;) {
        char children[2 * PATH_ROOM + sizeof entry->d_name];
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(children, sizeof children, "%s/%s/children", path, entry->d_name);
        used = append_children(children, pids, used, room);
    }
    (void)closedir(threads);
    return used;
}

size_t hz_proc_descendants(pid_t root, pid_t *pids, size_t room)
{
    size_t used = append_all_children(root, pids, 0, room);
    for (size_t i = 0; i < used; i++) used = append_all_children(pids[i], pids, used, room);
    return used;
}

/* --- threads --------------------------------------------------------------------------------- */

/* What follows the name in a stat file: "S 1 ..."; its name may hold anything. NULL: none. */
static const char *read_stat(const char *path, char text[STAT_ROOM])
{
    if (hz_read_start(path, text, STAT_ROOM) == 0) return NULL;
    const char *end = strrchr(text, ')');
    return end != NULL && end[1] == ' ' ? end + 2 : NULL;
}

/* A number of a stat file; `field` counts from 1 as in proc(5), the state being the third. */
static int64_t stat_number(const char *from_state, int field)
{
    const char *at = from_state;
    for (int i = 3; i < field && at != NULL; i++) {
        at = strchr(at, ' ');
        if (at != NULL) at++;
    }
    return at != NULL ? strtoll(at, NULL, 10) : 0;
}

/* The state is that of proc(5). */
static void add_state(hz_states *sum, char state, bool is_first)
{
    sum->running |= state == 'R';
    sum->beside |= state == 'R' && !is_first;
    sum->sleeping |= state == 'S';
    sum->stopped |= state == 'T';
    sum->deep |= state == 'D';
    sum->living += is_first && state != 'Z' && state != 'X';
}

void hz_proc_add_states(pid_t pid, hz_states *sum)
{
    char path[PATH_ROOM];
    char text[STAT_ROOM];
    process_path(path, pid, "stat");
    const char *stat = read_stat(path, text);
    if (stat == NULL) return;
    const int64_t count = stat_number(stat, 20);
    add_state(sum, *stat, true);
    if (count > sum->threads) sum->threads = count;
    if (count < 2) return;
    process_path(path, pid, "task");
    DIR *threads = opendir(path);
    if (threads == NULL) return;
    for (const struct dirent *entry; (entry = readdir(threads)) != NULL;) {
        char file[2 * PATH_ROOM + sizeof entry->d_name];
        if (entry->d_name[0] == '.' || strtol(entry->d_name, NULL, 10) == pid) continue;
        (void)snprintf(file, sizeof file, "%s/%s/stat", path, entry->d_name);
        stat = read_stat(file, text);
        if (stat != NULL) add_state(sum, *stat, false);
    }
    (void)closedir(threads);
}

int64_t hz_proc_cpu_ns(pid_t pid)
{
    clockid_t clock;
    struct timespec used;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
    return (int64_t)used.tv_sec * NS_PER_S + used.tv_nsec;
}

int64_t hz_proc_reaped_ns(pid_t pid)
{
    char path[PATH_ROOM];
    char text[STAT_ROOM];
    process_path(path, pid, "stat");
    const char *stat = read_stat(path, text);
    if (stat == NULL) return 0;
    const int64_t ticks = stat_number(stat, 16) + stat_number(stat, 17); /* user, system */
    return ticks * (NS_PER_S / sysconf(_SC_CLK_TCK));
}

int64_t hz_proc_delay_ns(pid_t pid)
{
    return process_field(pid, "schedstat", " "); /* on a CPU, waiting for one, slices */
}

/* --- mapped files ---------------------------------------------------------------------------- */

bool hz_proc_find_mapped(pid_t pid, bool (*visit)(void *context, const char *path), void *context)
{
    char file[PATH_ROOM];
    char line[4096];
    bool found = false;
    process_path(file, pid, "maps");
    FILE *maps = fopen(file, "re");
    if (maps == NULL) return false;
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        char *path = strchr(line, '/');
        if (path == NULL) continue;
        path[strcspn(path, "\n")] = '\0';
        found = visit(context, path);
    }
    (void)fclose(maps);
    return found;
}
