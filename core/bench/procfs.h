/*
 * What /proc tells about processes and the machine. A number that is not known is -1.
 */
#ifndef HZ_BENCH_PROCFS_H
#define HZ_BENCH_PROCFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/* Reads the start of a file into `text`, with a zero byte behind it; returns its length, 0 where it
 * cannot be read. */
size_t hz_read_start(const char *path, char *text, size_t size);

/* Resident KiB of a process, from statm: cheap. */
int64_t hz_proc_rss_kb(pid_t pid);

/* Proportional KiB of a process, from smaps_rollup: shared pages are split among users. Slow. */
int64_t hz_proc_pss_kb(pid_t pid);

/* A number of /proc/PID/status, e.g. "VmHWM:" (peak resident, KiB) or "\nThreads:". */
int64_t hz_proc_status(pid_t pid, const char *field);

/* User and system time of a usage, in seconds. */
double hz_usage_cpu_s(const struct rusage *usage);

/* Fills `pids` with the descendants of `root` (without itself), parents first; returns how many, at
 * most `room`. */
size_t hz_proc_descendants(pid_t root, pid_t *pids, size_t room);

/* What the threads of some processes do. */
typedef struct hz_states {
    bool running;    /* one runs, or wants to */
    bool beside;     /* one that is not the first of its process does */
    bool sleeping;   /* one sleeps */
    bool stopped;    /* one stands */
    bool deep;       /* one sleeps in the kernel, and cannot be stopped */
    int64_t living;  /* processes that have not ended */
    int64_t threads; /* most that one process has */
} hz_states;

/* Adds what the threads of a process do. */
void hz_proc_add_states(pid_t pid, hz_states *sum);

/* CPU time of a process in ns; 0 when it has ended. */
int64_t hz_proc_cpu_ns(pid_t pid);

/* CPU time in ns of the children that a process has reaped; the kernel counts it in ticks of 10 ms.
 */
int64_t hz_proc_reaped_ns(pid_t pid);

/* Time in ns in which a process's first thread wanted a CPU and had none; -1 when it is reaped. */
int64_t hz_proc_delay_ns(pid_t pid);

/* Calls `visit` with the path of every mapping of a file, until it returns true; returns whether it
 * did. */
bool hz_proc_find_mapped(pid_t pid, bool (*visit)(void *context, const char *path), void *context);

/* Ticks (1/100 s) that a hypervisor took from this machine since it booted. */
int64_t hz_proc_steal_ticks(void);

/* Microseconds in which some task waited for a CPU since the machine booted. */
int64_t hz_proc_pressure_us(void);

/* Processes that the kernel killed for want of memory since the machine booted. */
int64_t hz_proc_oom_kills(void);

#endif
