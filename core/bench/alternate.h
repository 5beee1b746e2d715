/*
 * hz-alternate: runs several programs side by side, by turns, and measures each one's own time.
 *
 * Glossary
 *   unit     what one arm runs: a program; or a server, which is its service, and the load on it
 *   run      one start of a unit's program (its load, where it has a service) until it ends
 *   tree     all processes of a unit, as many as they become; its root is hz-launch, which keeps it
 *   turn     a span in which one unit's tree goes on and all others stand still
 *   active   the time of a run that its turns took: from the moment a tree is continued until every
 *            process of it has stopped, or its program has ended; of a tree that is one thread,
 *            without what it stood of that before we saw it stand
 *
 * The command line
 *   hz-alternate [options] --unit KEY [--service COUNT WORD...] --main COUNT WORD... [--unit ...]
 *   The COUNT words behind --main and --service are those that stand behind hz-launch: its options,
 *   then "--" and the program. So "--main 4 --env A=1 -- true" runs `true` with A. hz-launch proves
 *   the allocator and measures memory, as it does alone. The words are counted so that any word can
 *   stand among them. A port is chosen by the caller, and stands in the words. Behind --unit,
 *   --freezer names the folder of an empty control group, which the caller makes and removes, and
 *   --own-network gives the unit a network of its own: that of its service, where it has one.
 *
 * The course of a unit
 *   1. Where it has a service, that is started and goes on alone, all other units standing still,
 *      until the caller says that it answers (see `serve`); this time is not counted.
 *   2. Its program is started as far as its exec, which belongs to its first turn.
 *   3. Turns: its tree, the service's processes too, is continued, and stopped at the end of the
 *      turn; a program that ends ends its turn, and that run. Then the next run, up to --runs.
 *   4. When all units have done their runs, services go on once more, each alone (see `rest`); then
 *      they are killed.
 *   The order of units is random in one round and reversed in the next. The last unit that still
 *   runs is not stopped any more.
 *
 * A service and its load on one CPU (--cpu) run under SCHED_BATCH: a request that comes in does not
 * drive the load off the CPU, nor an answer the service. So a service answers all requests that
 * wait, and then the load sends all that it may. Otherwise the scheduler decides how many it finds
 * at each look, by how long it has run: one that is slower would find more of them, do less for
 * each, and seem less slow than it is. For the same reason the two are in one session: Linux gives
 * sessions equal shares of a CPU (autogroups), and so would let a service that has had less than
 * its load go between two threads of it, and one that has had more wait for all of them.
 *
 * Events, one JSON object a line on stdout; KEY of the unit and number of the run stand in each:
 *   start  pid: hz-launch's; program_pid: the program's; service: whether it is the service.
 *   serve  A service goes on. The caller finds out whether it answers, and writes "ready" to stdin;
 *          or "drop", and the unit is ended. A service that ends meanwhile answers for itself: an
 *          answer is read all the same.
 *   run    A run has ended. ended_as: why we ended it (hang: --timeout-ms of active time; stopped:
 *          it stopped itself; failed: its service has ended; interrupted), or null: then `result`
 *          tells how it ended. asked: whether it was asked to end before (--span-ms, by SIGINT to
 *          its group, and again after four times as long).
 *          position: place of its first turn in that round; start_ns: when that began,
 *          CLOCK_MONOTONIC; active_ns;
 *          alive_ns: the same with the turns of others; turns; awake: turns at whose end it ran or
 *          wanted to run; beside: those at whose end a thread other than a process's first one did;
 *          threads: most that one process had; delay_before_ns: of the result's delay_ns, what lies
 *          before the first turn; stdout_bytes: all it printed (the first of them are in the file
 *          that --keep-stdout names, KEY.RUN); stderr: its beginning and its end; result: what
 *          hz-launch said, as a string, or null when the program could not be started at all.
 *          Where the unit has a service: service_cpu_ns: CPU time that the service has used in the
 *          turns of this run.
 *   rest   As serve, after the runs: the caller reads what it wants of the idle service and writes
 *          "on".
 *   service  The service has ended: ended_as, stderr, result as in `run`; interrupted: it was told
 *          to, at the end of all.
 *   end    All units have ended.
 *
 * Nothing is left behind. A signal or the end of the caller ends this process, its end that of
 * every hz-launch, and that of hz-launch its tree: a stopped process can be killed. A program that
 * has not come to its exec ends by itself when its gate closes.
 */
#ifndef HZ_BENCH_ALTERNATE_H
#define HZ_BENCH_ALTERNATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "child.h"
#include "json.h"
#include "tree.h"

enum {
    HZ_UNITS_MAX = 32,
    HZ_REPORT_BYTES = 8 * 1024, /* what hz-launch says, at most */
};

/* A process tree behind hz-launch. */
typedef struct hz_job {
    char **words;          /* behind hz-launch's own; NULL: the unit has no such job */
    size_t word_count;     /* how many */
    hz_child keeper;       /* hz-launch */
    int gate;              /* socket: the program's pid, our permission, hz-launch's report */
    pid_t program;         /* the program */
    int program_fd;        /* readable when it has ended */
    bool is_open;          /* whether it was permitted to execute */
    int64_t delay_ns;      /* for how long it had waited for a CPU by then */
    bool is_gone;          /* whether hz-launch has ended, or was never started */
    int64_t ended_ns;      /* when the program was seen to have ended; 0: it has not */
    const char *killed_as; /* why we ended it, or NULL */
    int64_t ask_ns;        /* own time after which it is asked to end, or again; 0: never */
    bool was_asked;        /* whether it was asked */
    char report[HZ_REPORT_BYTES]; /* hz-launch's */
    size_t report_bytes;          /* its length so far */
} hz_job;

/* One side of the comparison. */
typedef struct hz_unit {
    const char *key;        /* its name in the events */
    hz_job service;         /* its server, if any */
    hz_job main;            /* its program, or the load */
    hz_tree tree;           /* the processes of both */
    char *door;             /* the cgroup.procs of its freezer; NULL: it is stopped by signals */
    bool has_network;       /* whether it has a network of its own */
    unsigned run;           /* number of the present run */
    bool is_over;           /* whether it has no more turns */
    size_t position;        /* in the order of its first round */
    int64_t start_ns;       /* of the run's first turn */
    int64_t active_ns;      /* of the run, so far */
    int64_t stands_ns;      /* for how long all of it has stood by itself, at the last look */
    unsigned turns;         /* of the run, so far */
    unsigned awake;         /* of these, at whose end something ran or wanted to */
    unsigned beside;        /* of these, at whose end a thread beside a first one did */
    int64_t service_cpu_ns; /* the service's CPU time, as of the beginning of the run */
} hz_unit;

/* What the command line asked for, and the state of the whole. */
typedef struct hz_alternate {
    int64_t turn_ns;    /* length of a turn */
    int64_t timeout_ns; /* longest active time of a run; 0: for ever */
    int64_t span_ns;    /* active time after which a run is asked to end; 0: never */
    unsigned runs;      /* of each unit */
    int cpu;            /* on which every tree has to stay; -1: on any */
    uint64_t seed;      /* of the order */
    const char *folder; /* where stdout is kept, or NULL */
    uint64_t keep;      /* bytes of it that are kept */
    hz_unit *units;     /* HZ_UNITS_MAX */
    size_t count;       /* how many are used */

    int signal_fd;    /* readable when a signal asks for the end */
    bool interrupted; /* whether one did */
    uint64_t rng;     /* random state */
} hz_alternate;

/* --- alternate_job.c: one job from its start to its report ------------------------------------ */

/* Starts hz-launch with the job's words, and waits until its program stands before its exec. */
void hz_job_start(const hz_alternate *all, hz_unit *unit, hz_job *job);

/* Lets the program execute. */
void hz_job_open(hz_job *job);

/*
 * Waits until `deadline_ns`, reading what the jobs of all units write. Returns early, with false,
 * when a program or a keeper of `unit` has ended or an end was asked for.
 */
bool hz_jobs_watch(hz_alternate *all, hz_unit *unit, int64_t deadline_ns);

/* Ends a job for a reason, or NULL when it is merely done, and waits for its report. */
void hz_job_end(hz_alternate *all, hz_unit *unit, hz_job *job, const char *reason);

/* What is told. */

void hz_alternate_started(const hz_unit *unit, const hz_job *job);
void hz_alternate_tell(const char *event, const hz_unit *unit);
void hz_alternate_ran(const hz_unit *unit, int64_t end_ns);
void hz_alternate_served(const hz_unit *unit);

#endif
