/*
 * The background thread of a program that rests, where the program drops rights, closes its
 * sandbox, runs in real time, or may make no more threads. HZ_REST_MS and HZ_DECAY_MS say how long
 * a rest takes.
 */
#include "rester.h"
#include "sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { NOBODY = 54321 };

/* ---- rights, sandboxes, limits -------------------------------------------------------------- */

/* The background thread: the youngest, beside main and another. */
static pid_t background_seen(void)
{
    pid_t most = 0;
    wait_for_threads(3);
    DIR *all = opendir("/proc/self/task");
    for (const struct dirent *each; (each = readdir(all)) != NULL;) {
        const pid_t number = atoi(each->d_name);
        most = number > most ? number : most;
    }
    (void)closedir(all);
    return most;
}

static void require_rights(const char *wanted)
{
    char path[64], line[256] = "";
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/status", background_seen());
    FILE *file = fopen(path, "r");
    require(file != NULL, "cannot read %s", path);
    while (strncmp(line, "Uid:", 4) != 0)
        require(fgets(line, sizeof line, file) != NULL, "%s tells no Uid", path);
    (void)fclose(file);
    require(strstr(line, wanted) != NULL, "the background thread has the rights of %s", line);
}

CHECK("the background thread drops its rights with the program")
{
    if (geteuid() != 0) return;
    rester self;
    rester_start(&self);
    rester_burst(&self);
    require_rights("0\t0\t0\t0");
    require(setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "setuid: %s", strerror(errno));
    require(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0, "/proc is not ours any more");
    require_rights("54321\t54321\t54321\t54321");
    require_that_a_burst_is_given_back(&self);
}

CHECK("the background thread of a program in real time is not in real time")
{
    const struct sched_param first = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &first) != 0) return; /* not allowed here */
    rester self;
    rester_start(&self);
    require(sched_getscheduler(background_seen()) == SCHED_OTHER,
            "the background thread is in real time, too");
    require(sched_getscheduler(self.tid) == SCHED_FIFO, "the program's thread is not");
    rester_end(&self);
}

CHECK("a sandbox that kills new threads does not meet the background thread")
{
    rester self;
    rester_start(&self);
    close_sandbox(SYS_clone, SYS_clone3, SECCOMP_RET_KILL_PROCESS);
    require_that_a_burst_is_given_back(&self);
    rester_end(&self);
    wait_for_threads(1);
}

static void limit_processes(rlim_t most)
{
    struct rlimit limit;
    require(getrlimit(RLIMIT_NPROC, &limit) == 0, "getrlimit: %s", strerror(errno));
    limit.rlim_cur = most;
    require(setrlimit(RLIMIT_NPROC, &limit) == 0, "setrlimit: %s", strerror(errno));
}

CHECK("where no second thread is allowed the program gets its own, and hz tries no more")
{
    if (geteuid() != 0) return;
    rester self, other;
    limit_processes(2);
    require(setuid(NOBODY) == 0, "setuid: %s", strerror(errno));
    require(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0, "/proc is not ours any more");
    rester_start(&self);
    require(threads_now() == 2, "%zu threads where two are allowed", threads_now());
    limit_processes(8);
    rester_start(&other);
    require(threads_now() == 3, "%zu threads: hz tried again", threads_now());
    rester_burst(&self);
    rester_end(&other);
    rester_end(&self);
}
