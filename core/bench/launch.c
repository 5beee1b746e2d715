/*
 * hz-launch: runs any program, measures it from outside and proves which allocator it ran on.
 *
 * The program leads a session of its own, if nothing else is asked for. This process adopts
 * whatever it leaves behind, so that nothing outlives the measurement, and waits for it from a
 * small process, since a child's peak memory is never reported below its parent's.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "arguments.h"
#include "child.h"
#include "json.h"
#include "libraries.h"
#include "procfs.h"
#include "turns.h"

enum {
    MS_MAX = 24 * 3600 * 1000,
    NS_PER_MS = 1000000,
    DOORS_MAX = 4,             /* control groups that the program joins */
    TREE_MAX = 4096,           /* processes that are measured */
    INFANT_NS = 3 * NS_PER_MS, /* age up to which the allocator is looked for without pause */
    YOUNG_NS = 50 * NS_PER_MS, /* age up to which it is looked at every ms */
    LOOK_NS = 100 * NS_PER_MS, /* later, the time between two thorough looks */
    EXIT_TIMEOUT = 124,        /* as timeout(1) */
    EXIT_OOM = 137,            /* 128 + SIGKILL */
    EXIT_BY_SIGNAL = 128,
};

static const char about[] = "usage: hz-launch [options] -- PROGRAM ARGUMENTS...\n\n"
                            "Runs PROGRAM, kills it and everything it started when it is too slow "
                            "or too big or has stopped itself, and then writes one JSON object.\n"
                            "The exit status is the program's; 128 + its signal; 124 too slow; 137 "
                            "too big.\n";

/* What was asked for, and what came out. */
typedef struct launch {
    int json_fd;                      /* where the result goes */
    int64_t timeout_ns;               /* longest time; 0: for ever */
    int64_t rss_limit_kb;             /* most memory of the tree; 0: no limit */
    const char *doors[DOORS_MAX + 1]; /* of control groups, NULL behind the last */
    size_t door_count;                /* how many */
    bool is_gated;        /* whether the program waits for permission before it executes */
    bool keeps_session;   /* whether the program stays in this session */
    hz_child child;       /* the program */
    int signal_fd;        /* readable when a signal asks for the end */
    int64_t start_ns;     /* when it was started */
    int64_t wall_ns;      /* how long it ran */
    int64_t delay_ns;     /* time in which its first thread wanted a CPU and had none */
    int64_t looked_ns;    /* its age at the last look at the whole tree */
    int64_t stopped_ns;   /* its age when it was first seen stopped; 0: it goes on */
    int64_t tree_peak_kb; /* highest memory of all processes together */
    size_t processes;     /* most processes at one time */
    int64_t left;         /* processes that it started and that outlived it */
    char program[4096];   /* what it runs now; a proof holds for that */
    char library[4096];   /* the library that provides its malloc, as far as seen; "" unknown */
    bool proved;          /* whether that is known for sure */
} launch;

/* --- a network of the program's own ----------------------------------------------------------- */

/*
 * Root makes one as it is; another user makes a user namespace for it, in which it stays the user
 * that it is, and its group, too. A network ends with its last process.
 */
static bool make_in_user_namespace(void)
{
    char users[64];
    char groups[64];
    (void)snprintf(users, sizeof users, "%u %u 1", geteuid(), geteuid());
    (void)snprintf(groups, sizeof groups, "%u %u 1", getegid(), getegid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 &&
           hz_write_file("/proc/self/uid_map", users) &&
           hz_write_file("/proc/self/setgroups", "deny") &&
           hz_write_file("/proc/self/gid_map", groups);
}

static bool bring_loopback_up(void)
{
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool done = ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
    (void)close(fd);
    return done;
}

static bool network_joined(pid_t other)
{
    const int fd = (int)syscall(SYS_pidfd_open, other, 0);
    if (fd < 0) return false;
    const bool done = setns(fd, CLONE_NEWNET) == 0 || setns(fd, CLONE_NEWUSER | CLONE_NEWNET) == 0;
    (void)close(fd);
    return done;
}

/* --- options --------------------------------------------------------------------------------- */

static void set_variable(void *target, const char *name, const char *text)
{
    (void)target, (void)name;
    hz_variable_set(text);
}

static void add_door(void *target, const char *name, const char *text)
{
    launch *l = target;
    if (l->door_count == DOORS_MAX) hz_refuse("--%s: at most %d", name, DOORS_MAX);
    l->doors[l->door_count++] = text;
}

static void set_input(void *target, const char *name, const char *text)
{
    (void)target;
    const int fd = open(text, O_RDONLY | O_CLOEXEC);
    if (fd < 0) hz_refuse("--%s %s: %s", name, text, strerror(errno));
    if (dup2(fd, STDIN_FILENO) < 0) hz_fail("cannot use %s as stdin: %s", text, strerror(errno));
    (void)close(fd);
}

static void own_network(void *target, const char *name, const char *text)
{
    (void)target, (void)text;
    if ((unshare(CLONE_NEWNET) != 0 && !make_in_user_namespace()) || !bring_loopback_up())
        hz_refuse("--%s: this process may not make a network: %s", name, strerror(errno));
}

static void join_network(void *target, const char *name, const char *text)
{
    (void)target;
    if (!network_joined((pid_t)hz_parse_whole(name, text, 1, INT32_MAX)))
        hz_refuse("--%s %s: cannot enter its network: %s", name, text, strerror(errno));
}

#define HZ_TARGET launch
static const hz_option options[] = {
    {"env", "NAME=VALUE", "sets a variable for the program; NAME alone unsets it",
     HZ_DO(set_variable)},
    {"timeout-ms", "MS", "kill it after that time (default: never)",
     HZ_NUMBER(MS, timeout_ns, 1, MS_MAX)},
    {"rss-limit-mb", "M", "kill it when it and its children use more (default: no limit)",
     HZ_STORE(MB, rss_limit_kb)},
    {"join", "FILE", "the cgroup.procs of a control group that the program joins", HZ_DO(add_door)},
    {"input", "FILE", "what the program reads on stdin (default: as this process)",
     HZ_DO(set_input)},
    {"own-network", NULL,
     "a network for the program, in which all ports are free and only loopback is there",
     HZ_DO(own_network)},
    {"network-of", "PID", "the program is in the network of that process", HZ_DO(join_network)},
    {"gated", NULL,
     "--json-fd is a socket; the program's pid is written there, and it executes when a byte is "
     "read",
     HZ_STORE(FLAG, is_gated)},
    {"keep-session", NULL,
     "the program stays in this session, in a process group of its own (default: it leads one)",
     HZ_STORE(FLAG, keeps_session)},
    {"json-fd", "N", "descriptor for the result (default 1, after the program's own output)",
     HZ_NUMBER(WHOLE, json_fd, 1, INT32_MAX)},
};

static const hz_command command = {about, options, sizeof options / sizeof options[0], NULL};

/* --- the allocator --------------------------------------------------------------------------- */

/*
 * Whether a mapped file is a known library that provides malloc. The C library counts only where no
 * other is mapped: it is mapped after those that were preloaded, so where it is seen without them,
 * they were not loaded.
 */
static bool is_provider(void *context, const char *path)
{
    launch *l = context;
    const char *name = hz_allocator_name(path);
    if (name == NULL || !hz_library_defines(path, "malloc")) return false;
    (void)snprintf(l->library, sizeof l->library, "%s", path);
    return strcmp(name, "glibc") != 0;
}

/* Which file the program executes; false when it has ended. */
static bool executed(const launch *l, char *program, size_t size)
{
    char link[64];
    (void)snprintf(link, sizeof link, "/proc/%d/exe", (int)l->child.pid);
    const ssize_t length = readlink(link, program, size - 1);
    program[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/*
 * Looks at what the program has mapped. After an exec, what was seen before counts no more. What is
 * seen while the program ends may be half of what it had: then what was seen before counts.
 */
static void look_at_allocator(launch *l)
{
    char program[sizeof l->program];
    char program_after[sizeof l->program];
    char library_before[sizeof l->library];
    if (!executed(l, program, sizeof program)) return;
    if (strcmp(program, l->program) != 0) {
        (void)snprintf(l->program, sizeof l->program, "%s", program);
        l->library[0] = '\0';
        l->proved = false;
    }
    if (l->proved) return;
    (void)strcpy(library_before, l->library);
    l->proved = hz_proc_find_mapped(l->child.pid, is_provider, l);
    if (l->proved) return;
    if (!executed(l, program_after, sizeof program_after) || strcmp(program, program_after) != 0)
        (void)strcpy(l->library, library_before);
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Memory of the whole tree: of one process what is resident, of several what each has to answer
 * for. */
static int64_t tree_kb(launch *l)
{
    static pid_t pids[TREE_MAX];
    const size_t count = hz_proc_descendants(getpid(), pids, TREE_MAX);
    int64_t resident = 0;
    int64_t proportional = 0;
    if (count > l->processes) l->processes = count;
    for (size_t i = 0; i < count; i++) {
        const int64_t kb = hz_proc_rss_kb(pids[i]);
        resident += kb > 0 ? kb : 0;
    }
    if (count < 2 || resident <= l->tree_peak_kb) return resident;
    for (size_t i = 0; i < count; i++) {
        const int64_t kb = hz_proc_pss_kb(pids[i]);
        proportional += kb > 0 ? kb : 0;
    }
    return proportional;
}

/* Looks at the program, or at the whole tree; kills the program when it is too big. */
static void look_at_memory(launch *l, bool whole)
{
    const int64_t kb = whole ? tree_kb(l) : hz_proc_rss_kb(l->child.pid);
    if (kb > l->tree_peak_kb) l->tree_peak_kb = kb;
    if (l->rss_limit_kb > 0 && kb > l->rss_limit_kb) hz_child_kill(&l->child, "oom");
}

/* --- waiting --------------------------------------------------------------------------------- */

/* Young programs are looked at more often: many are short, and their allocator is to be seen. */
static int64_t slice_ns(const launch *l, int64_t age_ns)
{
    if (!l->proved && age_ns < INFANT_NS) return NS_PER_MS / 10;
    return age_ns < YOUNG_NS ? NS_PER_MS : 20 * NS_PER_MS;
}

/* Sleeps for a slice or until something happens; true when a signal asks for the end. */
static bool doze(const launch *l, int64_t ns)
{
    struct pollfd fds[] = {{.fd = l->child.pidfd, .events = POLLIN},
                           {.fd = l->signal_fd, .events = POLLIN}};
    return ppoll(fds, 2, &(struct timespec){.tv_nsec = (long)ns}, NULL) > 0 && fds[1].revents != 0;
}

/* Takes note of how long the program waited for a CPU: it can be read until it is reaped. */
static bool reap(launch *l)
{
    const int64_t delay_ns = hz_proc_delay_ns(l->child.pid);
    if (delay_ns >= 0) l->delay_ns = delay_ns;
    return hz_child_reap(&l->child);
}

/* Whether a child is stopped now; its end is left to be reaped. */
static bool is_stopped(pid_t child)
{
    siginfo_t told = {0};
    return waitid(P_PID, (id_t)child, &told, WSTOPPED | WNOHANG | WNOWAIT) == 0 && told.si_pid != 0;
}

/*
 * Whether the program has stopped itself: nothing would let it go on. A program behind a gate is
 * also stopped from outside, for turns, so nothing is said of it.
 */
static bool stays_stopped(launch *l, int64_t age_ns)
{
    if (l->is_gated || !is_stopped(l->child.pid)) {
        l->stopped_ns = 0;
        return false;
    }
    if (l->stopped_ns == 0) l->stopped_ns = age_ns;
    return age_ns - l->stopped_ns >= HZ_STOPPED_NS;
}

static void watch_program(launch *l)
{
    while (!reap(l)) {
        const int64_t age_ns = hz_clock_ns() - l->start_ns;
        const bool late = l->timeout_ns > 0 && age_ns >= l->timeout_ns;
        const bool thorough = age_ns - l->looked_ns >= LOOK_NS;
        if (thorough) l->looked_ns = age_ns;
        if (thorough || age_ns < YOUNG_NS) look_at_allocator(l);
        look_at_memory(l, thorough);
        if (late)
            hz_child_kill(&l->child, "hang");
        else if (thorough && !l->child.end.ended && stays_stopped(l, age_ns))
            hz_child_kill(&l->child, "stopped");
        else if (!l->child.end.ended && doze(l, slice_ns(l, age_ns)))
            hz_child_kill(&l->child, "interrupted");
    }
    l->wall_ns = hz_clock_ns() - l->start_ns;
}

/* How many processes of the tree live, now that the program has ended. */
static int64_t count_survivors(void)
{
    static pid_t pids[TREE_MAX];
    const size_t count = hz_proc_descendants(getpid(), pids, TREE_MAX);
    hz_states sum = {0};
    for (size_t i = 0; i < count; i++) hz_proc_add_states(pids[i], &sum);
    return sum.living;
}

/* --- result ---------------------------------------------------------------------------------- */

static void write_allocator(hz_json *json, const launch *l)
{
    const char *name = hz_allocator_name(l->library);
    if (l->library[0] == '\0') {
        hz_json_null(json, "allocator");
        return;
    }
    hz_json_object(json, "allocator");
    hz_json_string(json, "name", name != NULL ? name : hz_base_name(l->library));
    hz_json_string(json, "path", l->library);
    hz_json_object_end(json);
}

static void write_launch(const launch *l, FILE *out)
{
    struct rusage all;
    hz_json json = {.out = out};
    const hz_ending *end = &l->child.end;
    (void)getrusage(RUSAGE_CHILDREN, &all);
    hz_json_object(&json, NULL);
    hz_json_string(&json, "status", hz_child_status(&l->child));
    hz_json_int(&json, "signal", end->signal);
    hz_json_int(&json, "code", end->code);
    hz_json_int(&json, "pid", l->child.pid);
    hz_json_int(&json, "wall_ns", l->wall_ns);
    hz_json_double(&json, "cpu_s", hz_usage_cpu_s(&all));
    hz_json_int(&json, "delay_ns", l->delay_ns);
    hz_json_int(&json, "rss_peak_kb", end->usage.ru_maxrss);
    hz_json_int(&json, "rss_tree_peak_kb",
                end->usage.ru_maxrss > l->tree_peak_kb ? end->usage.ru_maxrss : l->tree_peak_kb);
    hz_json_int(&json, "minor_faults", all.ru_minflt);
    hz_json_int(&json, "processes", (int64_t)(l->processes > 0 ? l->processes : 1));
    hz_json_int(&json, "left", l->left);
    write_allocator(&json, l);
    hz_json_end_line(&json);
}

static int exit_code(const launch *l)
{
    const char *status = hz_child_status(&l->child);
    if (strcmp(status, "hang") == 0) return EXIT_TIMEOUT;
    if (strcmp(status, "oom") == 0) return EXIT_OOM;
    return l->child.end.signal != 0 ? EXIT_BY_SIGNAL + l->child.end.signal : l->child.end.code;
}

int main(int argc, char **argv)
{
    static launch l = {.json_fd = STDOUT_FILENO};
    if (argc > 1 && strcmp(argv[1], "--tie") == 0) hz_tie(argc, argv);
    const int at = hz_parse_launcher(&command, &l, argc, argv);
    if (fcntl(l.json_fd, F_GETFD) < 0) hz_refuse("--json-fd %d: not an open descriptor", l.json_fd);
    if (l.json_fd > STDERR_FILENO) (void)fcntl(l.json_fd, F_SETFD, FD_CLOEXEC);
    FILE *out = fdopen(l.json_fd, "w");
    if (out == NULL) hz_refuse("--json-fd %d: cannot be written", l.json_fd);
    hz_preload_complete();
    l.signal_fd = hz_become_keeper();
    l.start_ns = hz_clock_ns();
    hz_child_start(&l.child, &(hz_spawn){.argv = (const char *const *)(argv + at),
                                         .given_fd = -1,
                                         .gate_fd = l.is_gated ? fileno(out) : -1,
                                         .doors = l.doors,
                                         .keeps_session = l.keeps_session,
                                         .captured = false});
    if (l.is_gated) l.start_ns = hz_clock_ns();
    (void)setpriority(PRIO_PROCESS, 0, -20); /* the child keeps the usual one */
    watch_program(&l);
    l.left = count_survivors();
    hz_kill_descendants();
    hz_remove_orphaned_groups(l.doors);
    write_launch(&l, out);
    return exit_code(&l);
}
