/*
 * A process that has threads and rests gives its memory back, by a worker that no program notices:
 * it changes nothing about forks, rights, sandboxes, signals and the end of a process. HZ_REST_MS
 * and HZ_DECAY_MS say how long that takes.
 */
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    BLOCKS = 60000,
    BLOCK_BYTES = 500, /* a burst of 30 MB */
    NOBODY = 54321,
    STATUS_OF_HANDLER = 17,
    LOOK_MS = 10,
    LOOKS_ALIKE = 30, /* of a worker that sleeps for good */
};
#define BURST_BYTES ((size_t)BLOCKS * BLOCK_BYTES)

/* ---- what the system knows of the process ---------------------------------------------------- */

static void pass(unsigned ms)
{
    (void)nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

/* The directory's entries that are numbers; the greatest into `*most`, if it is wanted. */
static size_t numbers_in(const char *directory, long *most)
{
    size_t count = 0;
    DIR *all = opendir(directory);
    require(all != NULL, "cannot read %s", directory);
    for (const struct dirent *each; (each = readdir(all)) != NULL;) {
        const long number = strtol(each->d_name, NULL, 10);
        if (each->d_name[0] == '.') continue;
        count++;
        if (most != NULL && number > *most) *most = number;
    }
    (void)closedir(all);
    return count;
}

static size_t threads_now(void)
{
    return numbers_in("/proc/self/task", NULL);
}

static void wait_for_threads(size_t wanted)
{
    while (threads_now() != wanted) pass(LOOK_MS);
}

/* A line of a thread's status, without its name. */
static void status_line(long thread, const char *name, char *value, size_t size)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/task/%ld/status", thread);
    FILE *file = fopen(path, "r");
    require(file != NULL, "cannot read %s", path);
    char line[256];
    value[0] = '\0';
    while (value[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0)
            (void)snprintf(value, size, "%s", line + strlen(name));
    }
    (void)fclose(file);
    require(value[0] != '\0', "%s does not tell %s", path, name);
}

/* ---- bursts --------------------------------------------------------------------------------- */

static void burst(void)
{
    void **blocks = malloc(BLOCKS * sizeof *blocks);
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK_BYTES);
        memset(blocks[i], 1, BLOCK_BYTES);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        free(blocks[i]);
    }
    free(blocks);
}

/* A thread that bursts when it is told to, and otherwise rests, until it is let go. */
typedef struct rester {
    pthread_t thread;
    atomic_int bursts_wanted, bursts_done;
    atomic_bool is_let_go;
    pid_t tid;
} rester;

static void *rest_and_burst(void *argument)
{
    rester *self = argument;
    self->tid = (pid_t)syscall(SYS_gettid);
    while (!atomic_load(&self->is_let_go)) {
        if (atomic_load(&self->bursts_wanted) > atomic_load(&self->bursts_done)) {
            burst();
            atomic_fetch_add(&self->bursts_done, 1);
        }
        pass(1);
    }
    return NULL;
}

static void rester_start(rester *self)
{
    *self = (rester){.bursts_wanted = 0};
    const int failure = pthread_create(&self->thread, NULL, rest_and_burst, self);
    require(failure == 0, "pthread_create: %s", strerror(failure));
}

static void rester_end(rester *self)
{
    atomic_store(&self->is_let_go, true);
    require(pthread_join(self->thread, NULL) == 0, "pthread_join failed");
}

static void rester_burst(rester *self)
{
    atomic_fetch_add(&self->bursts_wanted, 1);
    while (atomic_load(&self->bursts_done) < atomic_load(&self->bursts_wanted)) pass(1);
}

static void wait_until_given_back(size_t before)
{
    while (resident_bytes() > before + BURST_BYTES / 2) pass(LOOK_MS);
}

static void require_that_a_burst_is_given_back(rester *self)
{
    const size_t before = resident_bytes();
    rester_burst(self);
    wait_until_given_back(before);
}

static void worker_seen(long *worker)
{
    wait_for_threads(3);
    (void)numbers_in("/proc/self/task", worker);
}

/* ---- the worker ----------------------------------------------------------------------------- */

static void a_program_without_threads_gets_none(void)
{
    burst();
    burst();
    require(threads_now() == 1, "it has %zu threads", threads_now());
}

static void what_a_burst_left_goes_back_while_the_threads_rest(void)
{
    rester self;
    rester_start(&self);
    require_that_a_burst_is_given_back(&self);
    require_that_a_burst_is_given_back(&self); /* the worker slept meanwhile, and was woken */
    require(threads_now() == 3, "%zu threads, not main, one and the worker", threads_now());
    rester_end(&self);
}

static void many_threads_bring_one_worker(void)
{
    enum { MANY = 12 };
    rester all[MANY];
    for (size_t i = 0; i < MANY; i++) rester_start(&all[i]);
    wait_for_threads(MANY + 2);
    for (size_t i = 0; i < MANY; i++) rester_end(&all[i]);
}

static void at_rest_the_worker_sleeps_for_good(void)
{
    rester self;
    rester_start(&self);
    require_that_a_burst_is_given_back(&self);
    long worker = 0;
    char before[256] = "", now[256];
    worker_seen(&worker);
    for (int alike = 0; alike < LOOKS_ALIKE; alike++) {
        status_line(worker, "voluntary_ctxt_switches:", now, sizeof now);
        if (strcmp(before, now) != 0) alike = 0;
        (void)strcpy(before, now);
        pass(LOOK_MS);
    }
    rester_end(&self);
}

static void when_the_threads_have_ended_so_does_the_worker_and_comes_again(void)
{
    const size_t before = resident_bytes();
    for (int round = 0; round < 3; round++) {
        rester self;
        rester_start(&self);
        wait_for_threads(3);
        rester_burst(&self);
        rester_end(&self);
        wait_until_given_back(before);
        wait_for_threads(1);
    }
}

static void it_opens_no_descriptor_and_survives_that_all_are_closed(void)
{
    const size_t before = numbers_in("/proc/self/fd", NULL);
    rester self;
    rester_start(&self);
    wait_for_threads(3);
    require(numbers_in("/proc/self/fd", NULL) == before, "a descriptor was opened");
    require(syscall(SYS_close_range, 3, ~0U, 0) == 0 || errno == ENOSYS, "close_range failed");
    require_that_a_burst_is_given_back(&self);
}

/* ---- forks ---------------------------------------------------------------------------------- */

static void act_as_a_child(void *unused)
{
    (void)unused;
    require(threads_now() == 1, "a child has %zu threads", threads_now());
    burst();
    rester own;
    rester_start(&own);
    require_that_a_burst_is_given_back(&own);
    require(threads_now() == 3, "%zu threads, not main, one and the worker", threads_now());
    rester_end(&own);
}

static void require_children(int count)
{
    for (int i = 0; i < count; i++) {
        ending result;
        run_apart(act_as_a_child, NULL, 30, &result);
        require(result.signal == 0 && result.status == 0, "a child: signal %d, status %d: %s",
                result.signal, result.status, result.said);
    }
}

static void a_child_has_no_worker_until_it_makes_a_thread(void)
{
    rester self;
    rester_start(&self);
    rester_burst(&self);
    require_children(3); /* while the worker watches, and while it returns memory */
    rester_end(&self);
}

/* ---- rights, sandboxes, limits -------------------------------------------------------------- */

static void require_rights(const char *wanted)
{
    long thread = 0;
    char ids[256];
    wait_for_threads(3);
    (void)numbers_in("/proc/self/task", &thread);
    status_line(thread, "Uid:", ids, sizeof ids);
    require(strstr(ids, wanted) != NULL, "the worker has the rights of %s", ids);
}

static void the_worker_drops_its_rights_with_the_program(void)
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

static void the_worker_of_a_program_in_real_time_is_not(void)
{
    const struct sched_param first = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &first) != 0) return; /* not allowed here */
    rester self;
    long worker = 0;
    rester_start(&self);
    worker_seen(&worker);
    require(sched_getscheduler((pid_t)worker) == SCHED_OTHER, "the worker is in real time, too");
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

static void a_sandbox_that_kills_new_threads_does_not_meet_the_worker(void)
{
    rester self;
    rester_start(&self);
    close_sandbox(SYS_clone, SYS_clone3, SECCOMP_RET_KILL_PROCESS);
    require_that_a_burst_is_given_back(&self);
    rester_end(&self);
    wait_for_threads(1);
}

static void where_no_memory_can_be_returned_the_worker_gives_up(void)
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

static void limit_processes(rlim_t most)
{
    struct rlimit limit;
    require(getrlimit(RLIMIT_NPROC, &limit) == 0, "getrlimit: %s", strerror(errno));
    limit.rlim_cur = most;
    require(setrlimit(RLIMIT_NPROC, &limit) == 0, "setrlimit: %s", strerror(errno));
}

static void where_no_second_thread_is_allowed_the_program_gets_its_own(void)
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

/* ---- signals, and the end ------------------------------------------------------------------- */

static atomic_int handled;

static void handle(int signal)
{
    (void)signal;
    atomic_fetch_add(&handled, 1);
}

static void no_handler_runs_on_the_worker(void)
{
    sigset_t one, pending;
    (void)sigemptyset(&one);
    (void)sigaddset(&one, SIGUSR1);
    (void)signal(SIGUSR1, handle);
    (void)pthread_sigmask(SIG_BLOCK, &one, NULL);
    rester self;
    rester_start(&self); /* its mask is main's */
    wait_for_threads(3);
    require(kill(getpid(), SIGUSR1) == 0, "kill: %s", strerror(errno));
    require_that_a_burst_is_given_back(&self);
    require(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1, "it is not pending");
    require(atomic_load(&handled) == 0, "a handler ran");
    rester_end(&self);
}

static void exit_at_once(void *unused)
{
    (void)unused;
    static rester self;
    rester_start(&self);
    rester_burst(&self);
    exit(STATUS_OF_HANDLER);
}

static void exit_ends_the_process_whatever_the_worker_does(void)
{
    for (int i = 0; i < 20; i++) {
        ending result;
        run_apart(exit_at_once, NULL, 30, &result);
        require(result.status == STATUS_OF_HANDLER, "signal %d, status %d: %s", result.signal,
                result.status, result.said);
    }
}

static rester last; /* thread of a process whose main has ended */

static void tell_thread(void)
{
    _exit(syscall(SYS_gettid) == last.tid ? STATUS_OF_HANDLER : 1);
}

static void *let_go_of_last(void *main_thread)
{
    require(pthread_join(*(pthread_t *)main_thread, NULL) == 0, "main was not joined");
    atomic_store(&last.is_let_go, true);
    return NULL;
}

static void main_ends_first(void *is_resting)
{
    static pthread_t main_thread, other;
    (void)atexit(tell_thread);
    main_thread = pthread_self();
    rester_start(&last);
    rester_burst(&last);
    if (*(int *)is_resting) pass(200);
    require(pthread_create(&other, NULL, let_go_of_last, &main_thread) == 0, "no thread");
    (void)pthread_detach(other);
    pthread_exit(NULL);
}

/* The handlers of `exit` run on the last thread: where that is the worker, or the process waits for
 * it, one of these fails. */
static void a_process_whose_main_has_ended_ends_with_its_last_thread(void)
{
    for (int is_resting = 0; is_resting < 2; is_resting++) {
        for (int i = 0; i < 5; i++) {
            ending result;
            run_apart(main_ends_first, &is_resting, 30, &result);
            require(result.status == STATUS_OF_HANDLER, "signal %d, status %d: %s", result.signal,
                    result.status, result.said);
        }
    }
}

int main(int argc, char **argv)
{
    static const check checks[] = {
        {"a program without threads gets none", a_program_without_threads_gets_none, 0},
        {"what a burst left goes back while the threads rest",
         what_a_burst_left_goes_back_while_the_threads_rest, 0},
        {"many threads bring one worker", many_threads_bring_one_worker, 0},
        {"at rest the worker sleeps for good", at_rest_the_worker_sleeps_for_good, 0},
        {"when the threads have ended so does the worker, and comes again with the next",
         when_the_threads_have_ended_so_does_the_worker_and_comes_again, 0},
        {"it opens no descriptor, and survives that all are closed",
         it_opens_no_descriptor_and_survives_that_all_are_closed, 0},
        {"a child has no worker until it makes a thread",
         a_child_has_no_worker_until_it_makes_a_thread, 60},
        {"the worker drops its rights with the program",
         the_worker_drops_its_rights_with_the_program, 0},
        {"the worker of a program in real time is not in real time",
         the_worker_of_a_program_in_real_time_is_not, 0},
        {"a sandbox that kills new threads does not meet the worker",
         a_sandbox_that_kills_new_threads_does_not_meet_the_worker, 0},
        {"where no memory can be returned the worker gives up",
         where_no_memory_can_be_returned_the_worker_gives_up, 0},
        {"where no second thread is allowed the program gets its own, and hz tries no more",
         where_no_second_thread_is_allowed_the_program_gets_its_own, 0},
        {"no handler runs on the worker", no_handler_runs_on_the_worker, 0},
        {"exit ends the process, whatever the worker does",
         exit_ends_the_process_whatever_the_worker_does, 60},
        {"a process whose main has ended ends with its last thread",
         a_process_whose_main_has_ended_ends_with_its_last_thread, 60},
    };
    return run_checks(checks, COUNT(checks), argc, argv);
}
