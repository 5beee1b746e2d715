/*
 * The background thread of a program that rests, where the program drops rights, closes its
 * sandbox, runs in real time, or may make no more threads. HZ_REST_MS and HZ_DECAY_MS say how long
 * a rest takes.
 */
#include "rester.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <ucontext.h>

enum { NOBODY = 54321 };

/* ---- rights, sandboxes, limits -------------------------------------------------------------- */

static void require_rights(const char *wanted)
{
    char ids[256];
    status_line(background_seen(), "Uid:", ids, sizeof ids);
    require(strstr(ids, wanted) != NULL, "the background thread has the rights of %s", ids);
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
    require(sched_getscheduler((pid_t)background_seen()) == SCHED_OTHER,
            "the background thread is in real time, too");
    require(sched_getscheduler(self.tid) == SCHED_FIFO, "the program's thread is not");
    rester_end(&self);
}

/* From now on the process is killed when any of its threads makes one of the calls. */
static void close_sandbox(uint32_t call, uint32_t other, uint32_t verdict)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, verdict),
    };
    const struct sock_fprog filter = {COUNT(program), program};
    require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs: %s", strerror(errno));
    require(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0,
            "seccomp: %s", strerror(errno));
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

CHECK("where no memory can be returned the background thread gives up")
{
    rester self;
    rester_start(&self);
    wait_for_threads(3);
    close_sandbox(SYS_madvise, SYS_madvise, SECCOMP_RET_ERRNO | EPERM);
    rester_burst(&self);
    for (uint64_t before = 0, now, alike = 0; alike < LOOKS_ALIKE; before = now, alike++) {
        now = hz_counter("background_rounds");
        if (now != before) alike = 0;
        pass(LOOK_MS);
    }
    rester_end(&self);
}

static long background_tid;
static atomic_size_t answered; /* system calls of the background thread that a handler refused */

/* Refuses the system call that was trapped: its result is -EPERM. */
static void answer(int signal, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    (void)signal;
    (void)info;
    atomic_fetch_add(&answered, syscall(SYS_gettid) == background_tid ? 1 : 0);
#ifdef __x86_64__
    at->uc_mcontext.gregs[REG_RAX] = -EPERM;
#else
    at->uc_mcontext.regs[0] = (uint64_t)-EPERM;
#endif
}

CHECK("a sandbox that answers by a signal answers the background thread, too")
{
    const struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
    rester self;
    require(sigaction(SIGSYS, &action, NULL) == 0, "sigaction: %s", strerror(errno));
    rester_start(&self);
    background_tid = background_seen();
    close_sandbox(SYS_madvise, SYS_madvise, SECCOMP_RET_TRAP);
    rester_burst(&self);
    while (atomic_load(&answered) == 0) pass(LOOK_MS);
} /* the thread does not end: the C library would call madvise then, with all signals blocked */

/* From now on the thread may only read, write and end. */
static void *be_strict(void *is_strict)
{
    require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0, "seccomp: %s", strerror(errno));
    atomic_store((atomic_bool *)is_strict, true);
    (void)syscall(SYS_exit, 0);
    return NULL;
}

CHECK("a thread that shuts itself in does not shut the background thread in")
{
    static atomic_bool is_strict;
    rester self;
    rester_start(&self);
    (void)thread_start(be_strict, &is_strict);
    while (!atomic_load(&is_strict)) pass(LOOK_MS);
    require_that_a_burst_is_given_back(&self);
    rester_end(&self);
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
