/*
 * hz-alternate: whole programs by turns; alternate.h holds its protocol.
 */
#include "alternate.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "arguments.h"
#include "rng.h"
#include "turns.h"

enum {
    MS_MAX = 24 * 3600 * 1000,
    NS_PER_MS = 1000000,
    LOOK_NS = 20 * NS_PER_MS, /* between two looks at stdin while a service goes on */
    ASK_AGAIN = 4,            /* times the span is gone: a run that goes on is asked to end again */
    WORDS_MAX = 1000000,      /* of a job */
    ANSWER_MAX = 64,          /* an answer on stdin */
    STATUS_INTERRUPTED = 143, /* 128 + SIGTERM */
};

static const char about[] =
    "usage: hz-alternate [options] --unit KEY [--service COUNT WORD...] --main COUNT WORD...\n"
    "                    [--unit ...]...\n\n"
    "Runs the programs of all units by turns, on the same CPUs, and writes one JSON object a\n"
    "line. The COUNT words are those that stand behind hz-launch: options, -- and the program.\n";

/* --- a turn ---------------------------------------------------------------------------------- */

static size_t units_left(const hz_alternate *all)
{
    size_t left = 0;
    for (size_t i = 0; i < all->count; i++) left += !all->units[i].is_over;
    return left;
}

/* Asks a program to end by a signal. One that is stopped gets it when it goes on; one that is still
 * starting may lose it, as Python does, and is asked again. */
static void ask_to_end(hz_unit *unit)
{
    hz_job *job = &unit->main;
    if (job->ask_ns == 0 || job->ended_ns != 0 || unit->active_ns < job->ask_ns) return;
    job->was_asked |= kill(-job->program, SIGINT) == 0;
    job->ask_ns *= ASK_AGAIN;
}

/* Why a run must not go on, though its program has not ended; NULL: it may. */
static const char *reason_to_end(const hz_alternate *all, const hz_unit *unit)
{
    const hz_job *service = &unit->service;
    if (all->interrupted) return "interrupted";
    if (service->words != NULL && (service->is_gone || service->ended_ns != 0)) return "failed";
    if (all->timeout_ns > 0 && unit->active_ns >= all->timeout_ns) return "hang";
    if (unit->stands_ns >= HZ_STOPPED_NS) return "stopped";
    return NULL;
}

/* Whether the run is over: its program has ended, was ended, or could not be started. */
static bool is_over(const hz_unit *unit)
{
    const hz_job *job = &unit->main;
    return job->ended_ns != 0 || job->killed_as != NULL || job->program_fd < 0;
}

static void count_turn(hz_unit *unit, int64_t length_ns)
{
    unit->active_ns += length_ns;
    unit->turns++;
    unit->awake += unit->tree.was_awake;
    unit->beside += unit->tree.was_beside;
}

/*
 * A turn of the last unit: it is not stopped. Where it has stopped itself, it goes on as it would
 * at its next turn, if those are made by signals; else it is noted how long it stands.
 */
static void look_at_last(hz_unit *unit, int64_t length_ns)
{
    hz_tree_look(&unit->tree);
    if (unit->tree.was_stopped && !unit->tree.is_frozen_whole) hz_tree_go(&unit->tree);
    unit->stands_ns = unit->tree.stands ? unit->stands_ns + length_ns : 0;
}

/*
 * One turn, or all that are left when no other unit has any: then nothing is stopped. A program
 * that ends is counted to the moment at which that was seen.
 */
static void give_unit_turn(hz_alternate *all, hz_unit *unit)
{
    int64_t start_ns = hz_clock_ns();
    if (unit->turns == 0) unit->start_ns = start_ns;
    hz_tree_go(&unit->tree);
    if (!unit->main.is_open) hz_job_open(&unit->main);
    for (bool is_last = false; !is_last && !is_over(unit);) {
        const bool whole = hz_jobs_watch(all, unit, start_ns + all->turn_ns);
        const bool alone = whole && units_left(all) == 1;
        int64_t stood_ns = 0;
        if (alone)
            look_at_last(unit, hz_clock_ns() - start_ns);
        else if (unit->main.ended_ns == 0 || unit->service.words != NULL)
            stood_ns = hz_tree_stop(&unit->tree);
        const int64_t ended_ns = unit->main.ended_ns;
        const int64_t now_ns = ended_ns != 0 ? ended_ns : hz_clock_ns();
        count_turn(unit, now_ns - start_ns - (ended_ns != 0 ? 0 : stood_ns));
        start_ns = now_ns;
        ask_to_end(unit);
        const char *reason = ended_ns == 0 ? reason_to_end(all, unit) : NULL;
        if (reason != NULL) hz_job_end(all, unit, &unit->main, reason);
        is_last = !alone;
    }
}

/* --- a run ----------------------------------------------------------------------------------- */

static void begin_run(const hz_alternate *all, hz_unit *unit)
{
    unit->active_ns = unit->start_ns = unit->stands_ns = 0;
    unit->turns = unit->awake = unit->beside = 0;
    unit->tree.threads = 0;
    unit->service_cpu_ns =
        unit->service.keeper.pid != 0 ? hz_tree_cpu_ns(unit->service.keeper.pid) : 0;
    hz_job_start(all, unit, &unit->main);
}

/* Reports a run that is over and begins the next one, if there is one. */
static void end_run(hz_alternate *all, hz_unit *unit)
{
    const int64_t end_ns = unit->main.ended_ns != 0 ? unit->main.ended_ns : hz_clock_ns();
    if (unit->service.keeper.pid != 0 && !unit->service.is_gone)
        unit->service_cpu_ns = hz_tree_cpu_ns(unit->service.keeper.pid) - unit->service_cpu_ns;
    hz_job_end(all, unit, &unit->main, NULL);
    hz_alternate_ran(unit, end_ns);
    const bool failed = unit->main.killed_as != NULL || unit->main.keeper.end.code != 0;
    unit->is_over = failed || all->interrupted || ++unit->run == all->runs;
    if (!unit->is_over) begin_run(all, unit);
}

/* --- services -------------------------------------------------------------------------------- */

/* Lets the tree go on alone, asks by an event, and waits for the answer; "" when none comes. */
static const char *ask(hz_alternate *all, hz_unit *unit, const char *event)
{
    static char answer[ANSWER_MAX];
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    hz_alternate_tell(event, unit);
    while (!all->interrupted && poll(&in, 1, 0) <= 0)
        (void)hz_jobs_watch(all, unit, hz_clock_ns() + LOOK_NS);
    if (all->interrupted || fgets(answer, sizeof answer, stdin) == NULL) return "";
    answer[strcspn(answer, "\n")] = '\0';
    return answer;
}

/* Ends a service and says how it ended. */
static void end_service(hz_alternate *all, hz_unit *unit)
{
    if (unit->service.keeper.pid == 0 || unit->service.is_gone) return;
    const bool by_itself = unit->service.ended_ns != 0;
    hz_job_end(all, unit, &unit->service, by_itself ? NULL : "interrupted");
    hz_alternate_served(unit);
}

/* Starts a service and waits until the caller says that it answers. */
static void begin_service(hz_alternate *all, hz_unit *unit)
{
    hz_job_start(all, unit, &unit->service);
    hz_job_open(&unit->service);
    const bool is_ready = strcmp(ask(all, unit, "serve"), "ready") == 0;
    if (is_ready && unit->service.ended_ns == 0) {
        (void)hz_tree_stop(&unit->tree);
        return;
    }
    end_service(all, unit);
    unit->is_over = true;
}

/* Lets the services rest, and ends them. */
static void end_services(hz_alternate *all)
{
    for (size_t i = 0; i < all->count; i++) {
        hz_unit *unit = &all->units[i];
        if (unit->service.keeper.pid == 0 || unit->service.is_gone) continue;
        if (unit->service.ended_ns == 0 && !all->interrupted) {
            hz_tree_go(&unit->tree);
            (void)ask(all, unit, "rest");
        }
        end_service(all, unit);
    }
}

/* --- the whole ------------------------------------------------------------------------------- */

static void begin_all(hz_alternate *all)
{
    for (size_t i = 0; i < all->count && !all->interrupted; i++)
        if (all->units[i].service.words != NULL) begin_service(all, &all->units[i]);
    for (size_t i = 0; i < all->count && !all->interrupted; i++)
        if (!all->units[i].is_over) begin_run(all, &all->units[i]);
}

/* Each round has a random order, or the last one's reversed: what drifts falls on all alike. */
static void play_all(hz_alternate *all)
{
    size_t order[HZ_UNITS_MAX];
    begin_all(all);
    for (unsigned round = 0; units_left(all) > 0 && !all->interrupted; round++) {
        if (round % 2 == 0) hz_shuffle(&all->rng, order, all->count);
        for (size_t i = 0; i < all->count && !all->interrupted; i++) {
            hz_unit *unit = &all->units[order[round % 2 == 0 ? i : all->count - 1 - i]];
            if (unit->is_over) continue;
            if (unit->turns == 0) unit->position = i;
            give_unit_turn(all, unit);
            if (is_over(unit)) end_run(all, unit);
        }
    }
}

/* Ends what still runs. */
static void end_all(hz_alternate *all)
{
    for (size_t i = 0; i < all->count; i++) {
        hz_unit *unit = &all->units[i];
        if (unit->main.keeper.pid != 0 && !unit->main.is_gone) {
            hz_job_end(all, unit, &unit->main, "interrupted");
            hz_alternate_ran(unit, hz_clock_ns());
        }
    }
    end_services(all);
}

/* Leaves the CPU of the programs, if there is another one: nothing of ours runs in their turns. */
static void step_aside(int cpu)
{
    cpu_set_t cpus;
    if (cpu < 0) return;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0 || !CPU_ISSET((size_t)cpu, &cpus))
        hz_refuse("--cpu %d: this process may not use that CPU", cpu);
    CPU_CLR((size_t)cpu, &cpus);
    if (CPU_COUNT(&cpus) > 0) (void)sched_setaffinity(0, sizeof cpus, &cpus);
}

/* --- options --------------------------------------------------------------------------------- */

static void add_unit(void *target, const char *name, const char *text)
{
    hz_alternate *all = target;
    if (all->count == HZ_UNITS_MAX)
        hz_refuse("--%s %s: more than %d units", name, text, HZ_UNITS_MAX);
    if (text[0] == '\0' || strchr(text, '/') != NULL)
        hz_refuse("--%s %s: want a name without a slash", name, text);
    all->units[all->count++].key = text;
}

/* The unit to which a word belongs. */
static hz_unit *last_unit(const hz_alternate *all, const char *word)
{
    if (all->count == 0) hz_refuse("%s: stands before the first --unit", word);
    return &all->units[all->count - 1];
}

static void set_freezer(void *target, const char *name, const char *text)
{
    (void)name;
    hz_unit *unit = last_unit(target, "--freezer");
    if (!hz_tree_use_freezer(&unit->tree, text))
        hz_refuse("--freezer %s: want a control group of version 2: %s", text, strerror(errno));
    if (asprintf(&unit->door, "%s/cgroup.procs", text) < 0) hz_fail("no memory for a path");
}

static void set_network(void *target, const char *name, const char *text)
{
    (void)name, (void)text;
    last_unit(target, "--own-network")->has_network = true;
}

#define HZ_TARGET hz_alternate
static const hz_option options[] = {
    {"unit", "KEY", "begins a unit, called KEY in the events", HZ_DO(add_unit)},
    {"freezer", "DIR", "control group that stops the last unit (default: signals to its processes)",
     HZ_DO(set_freezer)},
    {"own-network", NULL, "gives the last unit a network of its own", HZ_DO(set_network)},
    {"turn-ms", "MS", "length of a turn (default 10)", HZ_NUMBER(MS, turn_ns, 0.1, MS_MAX)},
    {"runs", "N", "runs of each unit, one after the other (default 1)",
     HZ_NUMBER(WHOLE, runs, 1, 1000000)},
    {"timeout-ms", "MS", "a run whose own time is longer is killed (default: never)",
     HZ_NUMBER(MS, timeout_ns, 1, MS_MAX)},
    {"span-ms", "MS", "SIGINT to a run after so much of its own time (default: never)",
     HZ_NUMBER(MS, span_ns, 1, MS_MAX)},
    {"cpu", "N", "the CPU on which all programs stay (default: any)",
     HZ_NUMBER(WHOLE, cpu, 0, CPU_SETSIZE - 1)},
    {"seed", "K", "of the order of the units (default 1)", HZ_NUMBER(LONG, seed, 0, 0x1p64)},
    {"keep-stdout", "DIR", "keep what each run prints, in DIR/KEY.RUN", HZ_STORE(TEXT, folder)},
    {"keep-bytes", "N", "so much of it (default: all)", HZ_NUMBER(LONG, keep, 0, 0x1p63)},
};

static const hz_command command = {about, options, sizeof options / sizeof options[0], NULL};

/* The job that a word names, of the last unit; NULL: another word. */
static hz_job *job_of(const hz_alternate *all, const char *word)
{
    const bool is_service = strcmp(word, "--service") == 0;
    if (!is_service && strcmp(word, "--main") != 0) return NULL;
    hz_unit *unit = last_unit(all, word);
    return is_service ? &unit->service : &unit->main;
}

/* Takes the counted words behind `at`; returns where they end. */
static int take_words(hz_job *job, int at, int argc, char **argv)
{
    const char *name = argv[at] + 2;
    if (at + 1 >= argc) hz_refuse("--%s: the number of its words is missing", name);
    const int left = argc - at - 2;
    const int count = (int)hz_parse_whole(name, argv[at + 1], 1, WORDS_MAX);
    if (count > left) hz_refuse("--%s %d: only %d words stand behind it", name, count, left);
    job->words = argv + at + 2;
    job->word_count = (size_t)count;
    return at + 2 + count;
}

static void parse(hz_alternate *all, int argc, char **argv)
{
    for (int at = 1; at < argc;) {
        hz_job *job = job_of(all, argv[at]);
        at = job != NULL ? take_words(job, at, argc, argv)
                         : hz_parse_option(&command, all, at, argc, argv);
    }
    if (all->count == 0) hz_refuse("--unit is missing: there is nothing to measure");
    for (size_t i = 0; i < all->count; i++)
        if (all->units[i].main.words == NULL)
            hz_refuse("--unit %s: --main is missing", all->units[i].key);
}

int main(int argc, char **argv)
{
    static hz_unit units[HZ_UNITS_MAX];
    hz_alternate all = {
        .turn_ns = 10 * NS_PER_MS,
        .runs = 1,
        .cpu = -1,
        .seed = 1,
        .keep = INT64_MAX,
        .units = units,
    };
    parse(&all, argc, argv);
    all.signal_fd = hz_become_keeper();
    (void)prctl(PR_SET_TIMERSLACK, 1); /* our own wake-ups shall be prompt */
    all.rng = hz_random_start(all.seed, 0);
    step_aside(all.cpu);
    hz_hurry_self();
    play_all(&all);
    end_all(&all);
    hz_kill_descendants();
    for (size_t i = 0; i < all.count; i++)
        hz_remove_orphaned_groups((const char *const[]){all.units[i].door, NULL});
    hz_alternate_tell("end", NULL);
    return all.interrupted ? STATUS_INTERRUPTED : HZ_STATUS_OK;
}
