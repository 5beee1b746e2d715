/*
 * One job of a unit: hz-launch and the tree behind it, from the start to the report.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "alternate.h"
#include "arguments.h"
#include "procfs.h"
#include "turns.h"

enum {
    FDS_PER_JOB = 5,
    JOBS_MAX = 2 * HZ_UNITS_MAX,
    START_MS = 20000,     /* patience with hz-launch until its program is there */
    JOIN_NAP_NS = 100000, /* between two looks at whether the program has joined its freezer */
    JOIN_LOOKS = 10000,   /* after which it has been refused, and will say so itself */
    END_S = 10,           /* patience with hz-launch once its program has ended */
    SLICE_NS = 20000000,  /* between two looks at whether that is over */
    OWN_WORDS = 9,        /* before those of a job, at most */
};

/* --- starting -------------------------------------------------------------------------------- */

/* hz-launch, which stands beside this program. */
static const char *launcher(void)
{
    static char path[PATH_MAX + sizeof "/hz-launch"];
    const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
    char *end = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
    if (end == NULL) hz_fail("cannot find hz-launch: /proc/self/exe: %s", strerror(errno));
    (void)strcpy(end, "/hz-launch");
    return path;
}

/* Whether a service and its load share the unit: they are in one session; see alternate.h. */
static bool is_shared(const hz_unit *unit)
{
    return unit->service.words != NULL;
}

/* hz-launch's words for a job; never freed. */
static const char *const *job_words(const hz_unit *unit, const hz_job *job)
{
    static const char fd[] = {'0' + HZ_GIVEN_FD, '\0'};
    const bool is_load = job == &unit->main && is_shared(unit);
    char *service = NULL;
    const char **words = calloc(job->word_count + OWN_WORDS + 1, sizeof *words);
    if (words == NULL || asprintf(&service, "%d", (int)unit->service.keeper.pid) < 0)
        hz_fail("no memory for %zu words", job->word_count);
    const char *const own[OWN_WORDS] = {
        launcher(),
        "--gated",
        "--json-fd",
        fd,
        is_shared(unit) ? "--keep-session" : NULL,
        unit->door != NULL ? "--join" : NULL,
        unit->door,
        unit->has_network ? is_load ? "--network-of" : "--own-network" : NULL,
        unit->has_network && is_load ? service : NULL,
    };
    const char **end = words;
    for (size_t i = 0; i < OWN_WORDS; i++)
        if (own[i] != NULL) *end++ = own[i];
    memcpy(end, job->words, job->word_count * sizeof *words);
    return words;
}

static int open_stdout(const hz_alternate *all, const hz_unit *unit)
{
    char path[PATH_MAX];
    if (all->folder == NULL) return -1;
    (void)snprintf(path, sizeof path, "%s/%s.%u", all->folder, unit->key, unit->run);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) hz_fail("cannot write %s: %s", path, strerror(errno));
    return fd;
}

/*
 * Sees to it that the program, and what it starts, uses the CPU that was asked for. A service and
 * its load, which share it, do not drive each other off it; see alternate.h.
 */
static void place(const hz_alternate *all, const hz_unit *unit, pid_t program)
{
    cpu_set_t cpus;
    if (all->cpu < 0) return;
    CPU_ZERO(&cpus);
    CPU_SET((size_t)all->cpu, &cpus);
    (void)sched_setaffinity(program, sizeof cpus, &cpus);
    if (is_shared(unit)) (void)sched_setscheduler(program, SCHED_BATCH, &(struct sched_param){0});
}

/* Reads which process is to become the program; false when hz-launch has ended before. */
static bool meet(hz_job *job)
{
    struct pollfd gate = {.fd = job->gate, .events = POLLIN};
    if (poll(&gate, 1, START_MS) <= 0) return false;
    if (read(job->gate, &job->program, sizeof job->program) != (ssize_t)sizeof job->program)
        return false;
    job->program_fd = (int)syscall(SYS_pidfd_open, job->program, 0);
    return job->program_fd >= 0;
}

/* Whether a process is among those that a file lists. */
static bool is_in_group(const char *file, pid_t process)
{
    int found;
    bool is_there = false;
    FILE *list = fopen(file, "re");
    if (list == NULL) return false;
    while (!is_there && fscanf(list, "%d", &found) == 1) is_there = found == process;
    (void)fclose(list);
    return is_there;
}

/* Waits until the program is in its freezer: that takes the kernel milliseconds, which else would
 * be a part of its first turn. */
static void await_joined(const hz_unit *unit, pid_t program)
{
    if (unit->door == NULL) return;
    for (int looks = 0; looks < JOIN_LOOKS && !is_in_group(unit->door, program); looks++)
        (void)nanosleep(&(struct timespec){.tv_nsec = JOIN_NAP_NS}, NULL);
}

void hz_job_start(const hz_alternate *all, hz_unit *unit, hz_job *job)
{
    int ends[2];
    const bool is_kept = job == &unit->main && all->folder != NULL;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        hz_fail("cannot make a socket: %s", strerror(errno));
    *job = (hz_job){
        .words = job->words, .word_count = job->word_count, .program_fd = -1, .gate = ends[0],
        .ask_ns = all->span_ns};
    hz_child_start(&job->keeper, &(hz_spawn){.argv = job_words(unit, job),
                                             .given_fd = ends[1],
                                             .gate_fd = -1,
                                             .keeps_session = is_shared(unit),
                                             .is_mute = !is_kept,
                                             .captured = true});
    (void)close(ends[1]);
    if (is_kept) job->keeper.out.keep_fd = open_stdout(all, unit);
    job->keeper.out.keep = all->keep;
    hz_tree_root(&unit->tree, job->keeper.pid);
    if (meet(job)) {
        place(all, unit, job->program);
        await_joined(unit, job->program);
    }
    (void)fcntl(job->gate, F_SETFL, O_NONBLOCK);
    hz_alternate_started(unit, job);
}

void hz_job_open(hz_job *job)
{
    const int64_t delay_ns = hz_proc_delay_ns(job->program);
    job->is_open = true;
    job->delay_ns = delay_ns > 0 ? delay_ns : 0;
    (void)!send(job->gate, "", 1, MSG_NOSIGNAL);
}

/* --- reading --------------------------------------------------------------------------------- */

static void read_report(hz_job *job)
{
    const size_t room = HZ_REPORT_BYTES - job->report_bytes;
    const ssize_t got = read(job->gate, job->report + job->report_bytes, room);
    if (got > 0) job->report_bytes += (size_t)got;
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return;
    (void)close(job->gate);
    job->gate = -1;
}

/* Reads what is left when all has ended. */
static void job_read_rest(hz_job *job)
{
    hz_capture_read_rest(&job->keeper.out);
    hz_capture_read_rest(&job->keeper.err);
    if (job->gate >= 0) read_report(job);
}

/* --- watching -------------------------------------------------------------------------------- */

static bool is_alive(const hz_job *job)
{
    return job->keeper.pid != 0 && !job->is_gone;
}

static void gather_job(struct pollfd *fds, const hz_job *job, bool is_watched)
{
    const bool alive = is_alive(job);
    const int watched[FDS_PER_JOB] = {
        alive ? job->keeper.out.fd : -1,
        alive ? job->keeper.err.fd : -1,
        alive ? job->gate : -1,
        alive && is_watched ? job->program_fd : -1,
        alive && is_watched ? job->keeper.pidfd : -1,
    };
    for (size_t i = 0; i < FDS_PER_JOB; i++)
        fds[i] = (struct pollfd){.fd = watched[i], .events = POLLIN};
}

/* Acts on what poll saw of one job; false when something has ended. */
static bool attend_job(hz_job *job, const struct pollfd *fds, int64_t now_ns)
{
    if (fds[3].revents != 0) {
        job->ended_ns = now_ns;
        (void)close(job->program_fd);
        job->program_fd = -1;
    }
    if (fds[0].revents != 0) (void)hz_capture_read(&job->keeper.out);
    if (fds[1].revents != 0) (void)hz_capture_read(&job->keeper.err);
    if (fds[2].revents != 0) read_report(job);
    return fds[3].revents == 0 && fds[4].revents == 0;
}

/* The jobs of all units, the service of each before its program. */
static size_t list_jobs(const hz_alternate *all, hz_job **jobs)
{
    size_t count = 0;
    for (size_t i = 0; i < all->count; i++) {
        jobs[count++] = &all->units[i].service;
        jobs[count++] = &all->units[i].main;
    }
    return count;
}

/* One look, of at most `timeout_ns`; false when something ended or an end was asked for. */
static bool look_at_jobs(hz_alternate *all, const hz_unit *unit, int64_t timeout_ns)
{
    struct pollfd fds[1 + FDS_PER_JOB * JOBS_MAX];
    hz_job *jobs[JOBS_MAX];
    const size_t count = list_jobs(all, jobs);
    const struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                                     .tv_nsec = timeout_ns % 1000000000};
    fds[0] = (struct pollfd){.fd = all->interrupted ? -1 : all->signal_fd, .events = POLLIN};
    for (size_t i = 0; i < count; i++)
        gather_job(fds + 1 + FDS_PER_JOB * i, jobs[i],
                   jobs[i] == &unit->main || jobs[i] == &unit->service);
    if (ppoll(fds, 1 + FDS_PER_JOB * count, &timeout, NULL) <= 0) return true;
    const int64_t now_ns = hz_clock_ns();
    if (fds[0].revents != 0) all->interrupted = true;
    bool quiet = fds[0].revents == 0;
    for (size_t i = 0; i < count; i++)
        if (is_alive(jobs[i])) quiet &= attend_job(jobs[i], fds + 1 + FDS_PER_JOB * i, now_ns);
    return quiet;
}

bool hz_jobs_watch(hz_alternate *all, hz_unit *unit, int64_t deadline_ns)
{
    int64_t left;
    do {
        left = deadline_ns - hz_clock_ns();
        if (!look_at_jobs(all, unit, left < 0 ? 0 : left)) return false;
    } while (hz_clock_ns() < deadline_ns);
    return true;
}

/* --- the end --------------------------------------------------------------------------------- */

/* Closes what is open; nothing of the job lives. */
static void close_job(hz_unit *unit, hz_job *job)
{
    int *const open_fds[] = {&job->gate,          &job->program_fd,    &job->keeper.out.keep_fd,
                             &job->keeper.out.fd, &job->keeper.err.fd, &job->keeper.pidfd};
    for (size_t i = 0; i < sizeof open_fds / sizeof open_fds[0]; i++) {
        if (*open_fds[i] >= 0) (void)close(*open_fds[i]);
        *open_fds[i] = -1;
    }
    hz_tree_uproot(&unit->tree, job->keeper.pid);
    job->is_gone = true;
}

void hz_job_end(hz_alternate *all, hz_unit *unit, hz_job *job, const char *reason)
{
    if (!is_alive(job)) return;
    if (reason != NULL) {
        job->killed_as = reason;
        (void)shutdown(job->gate, SHUT_WR); /* one that waits for permission ends */
        (void)kill(job->keeper.pid, SIGTERM);
    }
    const int64_t deadline_ns = hz_clock_ns() + (int64_t)END_S * 1000000000;
    while (!hz_child_reap(&job->keeper) && hz_clock_ns() < deadline_ns)
        (void)hz_jobs_watch(all, unit, hz_clock_ns() + SLICE_NS);
    hz_child_kill(&job->keeper, "failed");
    job_read_rest(job);
    close_job(unit, job);
}

/* --- events: one JSON object a line, flushed at once ------------------------------------------ */

static hz_json unit_event(const char *event, const hz_unit *unit)
{
    hz_json json = {.out = stdout};
    hz_json_object(&json, NULL);
    hz_json_string(&json, "event", event);
    if (unit != NULL) {
        hz_json_string(&json, "unit", unit->key);
        hz_json_int(&json, "run", unit->run);
    }
    return json;
}

void hz_alternate_started(const hz_unit *unit, const hz_job *job)
{
    hz_json json = unit_event("start", unit);
    hz_json_bool(&json, "service", job == &unit->service);
    hz_json_int(&json, "pid", job->keeper.pid);
    hz_json_int(&json, "program_pid", job->program);
    hz_json_end_line(&json);
}

void hz_alternate_tell(const char *event, const hz_unit *unit)
{
    hz_json json = unit_event(event, unit);
    hz_json_end_line(&json);
}

static void write_ending(hz_json *json, const hz_job *job)
{
    static char text[HZ_CAPTURED_MAX];
    if (job->killed_as != NULL)
        hz_json_string(json, "ended_as", job->killed_as);
    else
        hz_json_null(json, "ended_as");
    hz_json_bytes(json, "stderr", text, hz_capture_copy(&job->keeper.err, text));
    hz_json_report(json, "result", job->report, job->report_bytes);
}

void hz_alternate_ran(const hz_unit *unit, int64_t end_ns)
{
    hz_json json = unit_event("run", unit);
    hz_json_int(&json, "position", (int64_t)unit->position);
    hz_json_int(&json, "start_ns", unit->start_ns);
    hz_json_int(&json, "active_ns", unit->active_ns);
    hz_json_int(&json, "alive_ns", end_ns - unit->start_ns);
    hz_json_bool(&json, "asked", unit->main.was_asked);
    hz_json_int(&json, "turns", unit->turns);
    hz_json_int(&json, "awake", unit->awake);
    hz_json_int(&json, "beside", unit->beside);
    hz_json_int(&json, "threads", unit->tree.threads);
    hz_json_int(&json, "delay_before_ns", unit->main.delay_ns);
    hz_json_int(&json, "stdout_bytes", (int64_t)unit->main.keeper.out.total);
    if (unit->service.words != NULL) hz_json_int(&json, "service_cpu_ns", unit->service_cpu_ns);
    write_ending(&json, &unit->main);
    hz_json_end_line(&json);
}

void hz_alternate_served(const hz_unit *unit)
{
    hz_json json = unit_event("service", unit);
    write_ending(&json, &unit->service);
    hz_json_end_line(&json);
}
