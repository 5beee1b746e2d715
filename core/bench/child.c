/*
 * Starting a program and watching it: see child.h.
 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arguments.h"
#include "procfs.h"

enum {
    DESCENDANTS_MAX = 8192, /* that one round of killing reaches */
    EXIT_REJECTED = 78,     /* EX_CONFIG of sysexits.h: the program refuses its configuration */
    RESET_ON_FORK = 1,      /* flag of sched_setattr */
    SLICE_NS = 100000,      /* shortest slice that the scheduler grants */
    LOOK_MS = 20,           /* between two looks at whether an end is asked for */
    PATIENCE_MS = 3000,     /* with what does not die, such as a task in uninterruptible sleep */
};

void hz_variable_set(const char *word)
{
    (void)putenv((char *)(uintptr_t)word);
}

/* --- starting -------------------------------------------------------------------------------- */

int hz_become_keeper(void)
{
    static const int ends[] = {SIGTERM, SIGINT, SIGHUP};
    const pid_t parent = getppid();
    sigset_t set;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) (void)sigaddset(&set, ends[i]);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) hz_fail("cannot receive signals: %s", strerror(errno));
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    (void)prctl(PR_SET_PDEATHSIG, SIGHUP); /* nothing else sends it but a terminal that is gone */
    (void)signal(SIGPIPE, SIG_IGN);
    if (getppid() != parent) hz_fail("its parent has ended");
    return fd;
}

/* What sched_setattr takes; the C library has had a type for it only since 2.41. */
typedef struct sched_request {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns;
    uint64_t deadline_ns;
    uint64_t period_ns;
} sched_request;

/*
 * As a real-time task where that is allowed, else with the shortest of slices (Linux 6.12 and
 * later), since a task that wants little goes first.
 */
void hz_hurry_self(void)
{
    const struct sched_param first = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0) return;
    (void)setpriority(PRIO_PROCESS, 0, -20);
    (void)syscall(SYS_sched_setattr, 0,
                  &(sched_request){.size = sizeof(sched_request),
                                   .policy = SCHED_OTHER,
                                   .flags = RESET_ON_FORK,
                                   .nice = getpriority(PRIO_PROCESS, 0),
                                   .runtime_ns = SLICE_NS},
                  0);
}

static void make_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0) hz_fail("cannot make a pipe: %s", strerror(errno));
}

static bool tell_pid(int gate)
{
    const pid_t self = getpid();
    return gate < 0 || write(gate, &self, sizeof self) == (ssize_t)sizeof self;
}

/* Waits for permission; false when the process that gives it has gone. */
static bool pass_gate(int gate)
{
    char permission;
    return gate < 0 || read(gate, &permission, 1) == 1;
}

bool hz_write_file(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    (void)close(fd);
    return done;
}

/* Joins each control group behind the doors; false, with errno, when the kernel refuses. */
static bool join_groups(const char *const *doors)
{
    for (; doors != NULL && *doors != NULL; doors++)
        if (!hz_write_file(*doors, "0")) return false;
    return true;
}

/*
 * Ties this process to its parent: it is killed when the parent ends, leaves no core file, and is
 * what the kernel ends first, by `oom_score_adj`, when memory runs out. Ends it at once when
 * `parent` is its parent no more. It hears SIGINT, which a shell's `&` has all ignore.
 */
static void tie_to(int parent, const char *oom_score_adj)
{
    (void)signal(SIGINT, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(HZ_STATUS_FAILED);
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    (void)hz_write_file("/proc/self/oom_score_adj", oom_score_adj);
}

/* Between fork and exec: nothing here may be heard by the parent but the errno in `report`. */
static _Noreturn void become_program(const hz_spawn *spawn, const int out[2], const int err[2],
                                     int report, pid_t parent)
{
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (!spawn->keeps_session || setpgid(0, 0) != 0) (void)setsid();
    tie_to(parent, "1000");
    if (spawn->captured) {
        (void)dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
        (void)dup2(spawn->is_mute ? open("/dev/null", O_WRONLY | O_CLOEXEC) : out[1],
                   STDOUT_FILENO);
        (void)dup2(err[1], STDERR_FILENO);
    }
    if (spawn->given_fd == HZ_GIVEN_FD)
        (void)fcntl(HZ_GIVEN_FD, F_SETFD, 0);
    else if (spawn->given_fd >= 0)
        (void)dup2(spawn->given_fd, HZ_GIVEN_FD);
    if (!tell_pid(spawn->gate_fd)) _exit(HZ_STATUS_FAILED);
    /* Behind the gate this would take milliseconds of the program's turn. Its group may be frozen,
       so the pid is told before. */
    const bool has_joined = join_groups(spawn->doors);
    const int why_not = errno;
    if (!pass_gate(spawn->gate_fd)) _exit(HZ_STATUS_FAILED);
    for (const char *const *word = spawn->changes; word != NULL && *word != NULL; word++)
        hz_variable_set(*word);
    if (has_joined) (void)execvp(spawn->argv[0], (char *const *)(uintptr_t)spawn->argv);
    const int why = has_joined ? errno : why_not;
    (void)!write(report, &why, sizeof why);
    _exit(HZ_STATUS_FAILED);
}

static void open_capture(hz_capture *capture, int ends[2])
{
    (void)close(ends[1]);
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    capture->fd = ends[0];
}

/* A descriptor that does not collide with HZ_GIVEN_FD in the child. */
static int move_up(int fd)
{
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, HZ_GIVEN_FD + 1);
    if (moved < 0) hz_fail("no file descriptor is left: %s", strerror(errno));
    (void)close(fd);
    return moved;
}

/* Whether a signal that a keeper blocks asks for the end. */
static bool is_end_asked(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1 ||
            sigismember(&pending, SIGHUP) == 1);
}

/*
 * Waits for the exec; returns whether it failed, and why. A child that was stopped before does not
 * come to it: it is killed when an end is asked for.
 */
static bool has_failed(int report, pid_t child, int *why)
{
    struct pollfd fd = {.fd = report, .events = POLLIN};
    while (poll(&fd, 1, LOOK_MS) <= 0)
        if (is_end_asked()) (void)kill(child, SIGKILL);
    return read(report, why, sizeof *why) == (ssize_t)sizeof *why;
}

void hz_child_start(hz_child *child, const hz_spawn *spawn)
{
    int out[2] = {-1, -1};
    int err[2] = {-1, -1};
    int report[2];
    int why;
    if (spawn->captured) {
        make_pipe(out);
        make_pipe(err);
    }
    make_pipe(report);
    report[1] = move_up(report[1]);
    *child = (hz_child){.out = {.fd = -1, .keep_fd = -1},
                        .err = {.fd = -1, .keep_fd = -1},
                        .oom_kills = hz_proc_oom_kills()};
    const pid_t parent = getpid();
    child->pid = fork();
    if (child->pid < 0) hz_fail("cannot fork: %s", strerror(errno));
    if (child->pid == 0) become_program(spawn, out, err, report[1], parent);
    (void)close(report[1]);
    if (spawn->captured) {
        open_capture(&child->out, out);
        open_capture(&child->err, err);
    }
    if (has_failed(report[0], child->pid, &why))
        hz_refuse("cannot run %s: %s", spawn->argv[0], strerror(why));
    (void)close(report[0]);
    child->pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
    if (child->pidfd < 0) hz_fail("cannot watch a process: %s", strerror(errno));
}

/* --- streams --------------------------------------------------------------------------------- */

/* Takes note of the beginning of a stream. */
static void keep_beginning(hz_capture *capture, const char *bytes, size_t count)
{
    const uint64_t room = capture->total < capture->keep ? capture->keep - capture->total : 0;
    const size_t kept = count < room ? count : (size_t)room;
    if (capture->total < HZ_CAPTURE_BYTES) memcpy(capture->head + capture->total, bytes, count);
    if (capture->keep_fd >= 0 && write(capture->keep_fd, bytes, kept) != (ssize_t)kept)
        hz_fail("cannot keep what the program prints: %s", strerror(errno));
}

bool hz_capture_read(hz_capture *capture)
{
    const size_t at = capture->total % HZ_CAPTURE_BYTES;
    const ssize_t got = read(capture->fd, capture->bytes + at, HZ_CAPTURE_BYTES - at);
    if (got > 0) {
        keep_beginning(capture, capture->bytes + at, (size_t)got);
        capture->total += (uint64_t)got;
        return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    (void)close(capture->fd);
    capture->fd = -1;
    return false;
}

void hz_capture_read_rest(hz_capture *capture)
{
    uint64_t before;
    do {
        before = capture->total;
    } while (capture->fd >= 0 && hz_capture_read(capture) && capture->total > before);
}

size_t hz_capture_copy(const hz_capture *capture, char *text)
{
    const uint64_t total = capture->total;
    const size_t head = total < HZ_CAPTURE_BYTES ? (size_t)total : HZ_CAPTURE_BYTES;
    const size_t tail = total - head < HZ_CAPTURE_BYTES ? (size_t)total - head : HZ_CAPTURE_BYTES;
    memcpy(text, capture->head, head);
    for (size_t i = 0; i < tail; i++)
        text[head + i] = capture->bytes[(total - tail + i) % HZ_CAPTURE_BYTES];
    return head + tail;
}

/* --- the end --------------------------------------------------------------------------------- */

static bool wait_for(hz_child *child, int flags)
{
    int status;
    if (child->end.ended) return true;
    const pid_t waited = wait4(child->pid, &status, flags, &child->end.usage);
    if (waited != child->pid) return false;
    child->end.ended = true;
    child->end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    child->end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return true;
}

bool hz_child_reap(hz_child *child)
{
    return wait_for(child, WNOHANG);
}

/* Stops, then kills everything below `root`; what forks in between is caught by the next round. */
static size_t kill_below(pid_t root)
{
    static pid_t pids[DESCENDANTS_MAX];
    const size_t count = hz_proc_descendants(root, pids, DESCENDANTS_MAX);
    for (size_t i = 0; i < count; i++) (void)kill(pids[i], SIGSTOP);
    for (size_t i = 0; i < count; i++) (void)kill(pids[i], SIGKILL);
    return count;
}

void hz_child_kill(hz_child *child, const char *reason)
{
    if (hz_child_reap(child)) return;
    child->killed_as = reason;
    (void)kill(child->pid, SIGSTOP);
    (void)kill_below(child->pid);
    (void)kill(child->pid, SIGKILL);
    while (!wait_for(child, 0) && errno == EINTR) continue;
}

const char *hz_child_status(const hz_child *child)
{
    const hz_ending *end = &child->end;
    if (child->killed_as != NULL) return child->killed_as;
    if (end->signal == SIGKILL && hz_proc_oom_kills() > child->oom_kills) return "oom";
    if (end->signal != 0) return "crash";
    if (end->code == EXIT_REJECTED) return "rejected";
    return end->code == 0 ? "ok" : "failed";
}

void hz_kill_descendants(void)
{
    for (int round = 0; round < PATIENCE_MS && kill_below(getpid()) > 0; round++) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    }
}

void hz_remove_orphaned_groups(const char *const *doors)
{
    sigset_t pending;
    if (sigpending(&pending) != 0 || sigismember(&pending, SIGHUP) != 1) return;
    for (; *doors != NULL; doors++) {
        char *door = strdup(*doors);
        if (door != NULL) (void)rmdir(dirname(door));
        free(door);
    }
}

/* --- a program in this process's place ------------------------------------------------------ */

enum { PARENT = 2, ENVIRONMENT, REPORT, PROGRAM }; /* where the words of --tie stand */

/* Makes the variables that a descriptor holds those of this process. */
static void take_environment(int fd)
{
    struct stat about;
    if (fstat(fd, &about) != 0) hz_fail("--tie: descriptor %d: %s", fd, strerror(errno));
    (void)clearenv();
    if (about.st_size == 0) return;
    char *text = mmap(NULL, (size_t)about.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (text == MAP_FAILED) hz_fail("--tie: descriptor %d cannot be read", fd);
    for (char *at = text; at < text + about.st_size; at += strlen(at) + 1) hz_variable_set(at);
}

_Noreturn void hz_tie(int argc, char **argv)
{
    if (argc <= PROGRAM)
        hz_refuse("usage: hz-launch --tie PARENT ENVIRONMENT REPORT PROGRAM ARGUMENTS...");
    const int parent = (int)hz_parse_whole("tie", argv[PARENT], 1, INT_MAX);
    const int environment_fd = (int)hz_parse_whole("tie", argv[ENVIRONMENT], 0, INT_MAX);
    const int report_fd = (int)hz_parse_whole("tie", argv[REPORT], 0, INT_MAX);
    tie_to(parent, "500");
    take_environment(environment_fd); /* its PATH is where PROGRAM is looked for */
    (void)close(environment_fd);
    (void)fcntl(report_fd, F_SETFD, FD_CLOEXEC);
    (void)execvp(argv[PROGRAM], argv + PROGRAM);
    const int why = errno;
    (void)!write(report_fd, &why, sizeof why);
    _exit(HZ_STATUS_FAILED);
}
