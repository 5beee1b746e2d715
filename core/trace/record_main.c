/*
 * hz-record: records what a program does with its allocator, by a preloaded library.
 *
 * The program has this process's terminal, signals and place; this process is its parent, takes
 * what its threads log out of memory that both share, and writes it. When the program has ended, a
 * trace is made of the log.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <sys/shm.h>
#include <sys/stat.h>

#include "arguments.h"
#include "child.h"
#include "clock.h"
#include "drain.h"
#include "log_read.h"
#include "libraries.h"
#include "trace_write.h"

enum { EXIT_BY_SIGNAL = 128, SECONDS_MAX = 365 * 86400 };

static const char about[] =
    "usage: hz-record --output FILE --library FILE [options] -- PROGRAM ARGUMENTS...\n"
    "       hz-record --output FILE --pid PID [options]\n\n"
    "Records every call of PROGRAM to its allocator into a trace; the exit status is the\n"
    "program's. With --pid, wakes the recorder of a process that was started with\n"
    "LD_PRELOAD=libhz-recorder.so and HZ_RECORD=asleep, until a signal or --for ends it.\n";

/* What was asked for, and what there is. */
typedef struct record {
    const char *output;  /* the trace */
    const char *library; /* libhz-recorder.so */
    double seconds;      /* after which the recording ends; 0: with the program */
    pid_t pid;           /* the program, or the process that is woken */
    bool is_woken;       /* it is one that is woken */
    bool is_each;        /* every program that was started gets a trace */
    bool has_ended;      /* the program has */
    int status;          /* of wait(2), when it has */
    char *log;           /* the file of the log */
    hz_bell *bell;       /* of a process that is woken */
} record;

static volatile sig_atomic_t is_stopped; /* a signal asked for the end */
static pid_t program_pid;                /* gets the signals that only this process got */

/* ---- options -------------------------------------------------------------------------------- */

static void set_library(void *target, const char *name, const char *text)
{
    if (access(text, R_OK) != 0) hz_refuse("--%s %s: %s", name, text, strerror(errno));
    if (strpbrk(text, ": ") != NULL)
        hz_refuse("--%s %s: LD_PRELOAD cannot name a path with a colon or a space", name, text);
    ((record *)target)->library = text;
}

static void set_pid(void *target, const char *name, const char *text)
{
    record *r = target;
    r->pid = (pid_t)hz_parse_whole(name, text, 1, INT_MAX);
    r->is_woken = true;
}

#define HZ_TARGET record
static const hz_option options[] = {
    {"output", "FILE", "the trace", HZ_STORE(TEXT, output)},
    {"library", "FILE", "libhz-recorder.so", HZ_DO(set_library)},
    {"for", "SECONDS", "end the recording after that time (default: with PROGRAM)",
     HZ_NUMBER(DECIMAL, seconds, 0.001, SECONDS_MAX)},
    {"each", NULL, "a trace for every program that PROGRAM starts, not only the busiest",
     HZ_STORE(FLAG, is_each)},
    {"pid", "PID", "wake the recorder of this process", HZ_DO(set_pid)},
};

static const hz_command command = {about, options, sizeof options / sizeof options[0], NULL};

static int parse(record *r, int argc, char **argv)
{
    int at = 1;
    while (at < argc && strcmp(argv[at], "--") != 0)
        at = hz_parse_option(&command, r, at, argc, argv);
    const bool has_program = at + 1 < argc;
    if (r->output == NULL) hz_refuse("--output: it is missing");
    hz_require_output(r->output);
    if (has_program == r->is_woken) hz_refuse("want either a program after -- or --pid");
    if (has_program && r->library == NULL) hz_refuse("--library: it is missing");
    if (asprintf(&r->log, "%s.recording", r->output) < 0) hz_fail("no memory");
    return at + 1;
}

/* ---- a recorder that sleeps: its bell is in the memory of its process (log_format.h) --------- */

/* How /proc/PID/maps calls a segment without a key. Its inode is the segment's id. */
static const char segment_name[] = "/SYSV00000000";

/* The segment that a line of /proc/PID/maps is about; -1: it is about something else. */
static int segment_of(const char *line)
{
    int id;
    if (strstr(line, segment_name) == NULL) return -1;
    return sscanf(line, "%*x-%*x rw-s %*x %*x:%*x %d", &id) == 1 ? id : -1;
}

/* The bell in a segment; NULL: it holds none, or this user may not ring it. */
static hz_bell *bell_in(int segment)
{
    struct shmid_ds state;
    if (shmctl(segment, IPC_STAT, &state) != 0 || state.shm_segsz != sizeof(hz_bell)) return NULL;
    void *mapped = shmat(segment, NULL, 0);
    if (mapped == (void *)-1) return NULL;
    hz_bell *bell = mapped;
    if (bell->magic == HZ_BELL_MAGIC) return bell;
    (void)shmdt(mapped);
    return NULL;
}

static FILE *open_maps(pid_t pid)
{
    char path[64];
    struct stat owner;
    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    if (stat(path, &owner) != 0) hz_refuse("--pid %d: there is no such process", (int)pid);
    FILE *maps = fopen(path, "re");
    if (maps == NULL)
        hz_refuse("--pid %d: it may not be looked at (%s): run as its user, %u, or as root outside "
                  "of any container", (int)pid, strerror(errno), (unsigned)owner.st_uid);
    return maps;
}

/* Whether the pool that was named last is still being filled: what emptied it then, does now. */
static bool is_ringing(const hz_bell *bell)
{
    char path[HZ_BELL_PATH_BYTES];
    int pid, number, end = 0;
    memcpy(path, bell->pool_path, sizeof path);
    if (memchr(path, '\0', sizeof path) == NULL ||
        sscanf(path, "/proc/%d/fd/%d%n", &pid, &number, &end) != 2 || path[end] != '\0')
        return false;
    struct stat found; /* the program may have named a terminal, which would become ours */
    const int named = open(path, O_PATH | O_CLOEXEC);
    const bool is_file = named >= 0 && fstat(named, &found) == 0 && S_ISREG(found.st_mode);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", named);
    const int fd = is_file ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    hz_pool head = {0};
    const ssize_t length = pread(fd, &head, sizeof head, 0);
    if (fd >= 0) (void)close(fd);
    if (named >= 0) (void)close(named);
    return length == (ssize_t)sizeof head && head.magic == HZ_POOL_MAGIC &&
           atomic_load(&head.ended) == HZ_POOL_OPEN;
}

static hz_bell *bell_find(pid_t pid)
{
    FILE *maps = open_maps(pid);
    char *line = NULL;
    size_t room = 0;
    hz_bell *found = NULL;
    while (found == NULL && getline(&line, &room, maps) > 0) {
        const int segment = segment_of(line);
        if (segment >= 0) found = bell_in(segment);
    }
    free(line);
    (void)fclose(maps);
    if (found == NULL)
        hz_refuse("--pid %d: it has no recorder that sleeps; start it with "
                  "HZ_RECORD=asleep LD_PRELOAD=libhz-recorder.so",
                  (int)pid);
    if (found->version != HZ_LOG_VERSION)
        hz_refuse("--pid %d: its recorder is of another version of hztune", (int)pid);
    if (is_ringing(found)) hz_refuse("--pid %d: it is being recorded already", (int)pid);
    return found;
}

/* ---- signals -------------------------------------------------------------------------------- */

/* What a terminal sends, the program has got, too; what was sent to this process alone, it gets. */
static void hear_signal(int number, siginfo_t *from, void *context)
{
    (void)context;
    if (number == SIGCHLD) return;
    if (program_pid == 0)
        is_stopped = 1;
    else if (from->si_code != SI_KERNEL)
        (void)kill(program_pid, number);
}

static void catch_signals(void)
{
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD};
    struct sigaction action = {.sa_sigaction = hear_signal, .sa_flags = SA_SIGINFO};
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        (void)sigaction(numbers[i], &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
}

/* ---- the program ---------------------------------------------------------------------------- */

static char *variable(const char *name, const char *value, const char *more)
{
    char *text;
    const bool has_more = more != NULL && more[0] != '\0';
    if (asprintf(&text, "%s=%s%s%s", name, value, has_more ? ":" : "", has_more ? more : "") < 0)
        hz_fail("no memory");
    return text;
}

/* It gets a SIGTERM when this process dies; a recording that ends leaves it alone. */
static _Noreturn void become_recorded(char **argv, int report, pid_t parent)
{
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent) (void)execvp(argv[0], argv);
    const int why = errno;
    (void)!write(report, &why, sizeof why);
    _exit(HZ_STATUS_FAILED);
}

static void start_program(record *r, char **argv, const char *pool_path)
{
    int report[2];
    int why;
    const pid_t parent = getpid();
    hz_variable_set(variable("LD_PRELOAD", r->library, getenv("LD_PRELOAD")));
    hz_variable_set(variable(HZ_RECORD_VARIABLE, pool_path, NULL));
    hz_preload_complete();
    if (pipe2(report, O_CLOEXEC) != 0) hz_fail("cannot make a pipe: %s", strerror(errno));
    r->pid = fork();
    if (r->pid < 0) hz_fail("cannot fork: %s", strerror(errno));
    if (r->pid == 0) become_recorded(argv, report[1], parent);
    program_pid = r->pid;
    (void)close(report[1]);
    if (read(report[0], &why, sizeof why) == (ssize_t)sizeof why) {
        (void)unlink(r->log);
        hz_refuse("cannot run %s: %s", argv[0], strerror(why));
    }
    (void)close(report[0]);
}

/* ---- recording ------------------------------------------------------------------------------ */

static void look_at_program(record *r)
{
    if (r->has_ended) return;
    if (r->is_woken)
        r->has_ended = kill(r->pid, 0) != 0 && errno == ESRCH;
    else
        r->has_ended = waitpid(r->pid, &r->status, WNOHANG) == r->pid;
}

/* Until the program ends, the time is over, a signal asks for it, or nothing can be written. */
static void record_all(record *r, hz_drain *drain)
{
    const uint64_t start_ns = hz_clock_monotonic_ns(CLOCK_MONOTONIC);
    hz_drain_start(drain);
    while (!is_stopped && atomic_load(&drain->pool->ended) == HZ_POOL_OPEN) {
        const uint64_t age_ns = hz_clock_monotonic_ns(CLOCK_MONOTONIC) - start_ns;
        look_at_program(r);
        if (r->has_ended || (r->seconds > 0 && (double)age_ns >= r->seconds * 1e9)) break;
        hz_drain_step(drain);
    }
    hz_drain_end(drain);
}

/* In a process of its own: whatever goes wrong there must not end the program. */
static _Noreturn void make_trace(const record *r)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!hz_finish_log(r->log, r->output, r->is_each))
        (void)fprintf(stderr, "hz-record: nothing was recorded: no program called its allocator "
                              "through this library\n");
    (void)unlink(r->log);
    _exit(HZ_STATUS_OK);
}

/* Makes the trace; without room for it, the log stays. Returns whether all went well. */
static bool finish_record(const record *r, const hz_drain *drain)
{
    int status = -1;
    (void)close(drain->fd);
    const pid_t maker = fork();
    if (maker == 0) make_trace(r);
    while (maker > 0 && waitpid(maker, &status, 0) < 0 && errno == EINTR) continue;
    if (maker > 0 && WIFEXITED(status) && WEXITSTATUS(status) == HZ_STATUS_OK) return true;
    (void)fprintf(
        stderr,
        "hz-record: what was recorded is kept in %s; `hztune trace convert` makes a trace "
        "of it\n",
        r->log);
    return false;
}

static int exit_status(const record *r, bool is_finished)
{
    const int own = is_finished ? HZ_STATUS_OK : HZ_STATUS_FAILED;
    if (r->is_woken) return own;
    if (WIFSIGNALED(r->status)) return EXIT_BY_SIGNAL + WTERMSIG(r->status);
    return WEXITSTATUS(r->status) != 0 ? WEXITSTATUS(r->status) : own;
}

int main(int argc, char **argv)
{
    static hz_drain drain;
    record r = {0};
    const int program = parse(&r, argc, argv);
    if (r.is_woken) r.bell = bell_find(r.pid);
    catch_signals();
    hz_drain_make_pool(&drain);
    hz_drain_open_log(&drain, r.log, r.is_woken);
    if (r.is_woken) {
        (void)snprintf(r.bell->pool_path, sizeof r.bell->pool_path, "%s", drain.pool_path);
        atomic_fetch_add(&r.bell->rings, 1);
    } else {
        start_program(&r, argv + program, drain.pool_path);
    }
    drain.words = argv + program;
    drain.words_pid = r.is_woken ? 0 : r.pid;
    record_all(&r, &drain);
    const bool is_finished = finish_record(&r, &drain);
    while (!r.is_woken && !r.has_ended)
        if (waitpid(r.pid, &r.status, 0) == r.pid) r.has_ended = true;
    return exit_status(&r, is_finished);
}
