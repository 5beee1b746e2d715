/*
 * hz-bench's inside: the types that the harness and the workloads share.
 *
 * Glossary
 *
 *   workload   a shape of allocation: a table of parameters and some functions, of which a step
 *              is the heart
 *   player     plays the part of one thread in the workload; larson hands a player on from thread
 *              to thread
 *   step       a bounded piece of a player's work that never blocks: it returns how many
 *              operations it completed, and 0 when it has to wait for another player. The harness
 *              does the waiting, the counting and the parking, so a turn can end after any step.
 *   operation  what a workload's documentation says it counts; usually one malloc and one free,
 *              or one of the two
 *   request    one call of malloc, realloc or free as decided by a player's random numbers: the
 *              same sequence for the same seed, whatever the allocator
 *
 * Blocks under test come from hz_take() and go through hz_give() (see blocks.h). The harness's own
 * memory is mapped, so that it is neither measured nor in the allocator's way.
 */
#ifndef HZ_BENCH_H
#define HZ_BENCH_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "json.h"
#include "rng.h"
#include "turns.h"

#define HZ_LIKELY(x) __builtin_expect(!!(x), 1)
#define HZ_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define HZ_LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define HZ_LINE 64

enum { HZ_MAX_PARAMS = 8, HZ_MAX_SETTINGS = 4, HZ_BATCH = 64 };

struct hz_player;
struct hz_run;
struct hz_options;

/* --- what a workload is ---------------------------------------------------------------------- */

/* One parameter of a workload: a whole number, or (with choices) one of some words. */
typedef struct hz_bench_param {
    const char *name;           /* --name on the command line */
    int64_t default_value;      /* number, or index of the word */
    int64_t low, high;          /* legal range, both ends included; unused with choices */
    const char *const *choices; /* NULL-terminated words, or NULL */
    const char *unit;           /* of the number */
    const char *doc;            /* one line */
} hz_bench_param;

/* The two parameters between which sizes are drawn, by their defaults: see `sizes` of a player. */
#define HZ_SIZE_PARAMS(least, most)                                                                \
    {"min_size", least, 1, 1 << 26, NULL, "bytes", "smallest block"},                              \
    {                                                                                              \
        "max_size", most, 1, 1 << 26, NULL, "bytes", "largest block"                               \
    }

/* A published combination of parameters, chosen as workload@name. */
typedef struct hz_bench_setting {
    const char *name;   /* what stands after the @ */
    const char *doc;    /* where it comes from */
    const char *values; /* "name=value name=value"; the others keep their defaults */
} hz_bench_setting;

/*
 * A workload. Of the functions, step is a must.
 *
 *   prepare  checks the parameters together and makes what the players share
 *   begin    in the player's thread: fills its state and its live set
 *   step     does at most `most` operations: see the glossary
 *   drain    when the player has done its own work: serves what others hand over, adding to *done
 *            the operations that this completed, and hands over what it still owes; true when it
 *            owes nothing any more. Without it the inbox is emptied and what is unsent is sent
 *   end      in the player's thread, when all have stopped: frees what its state holds; the inbox,
 *            what is unsent and the slots are freed after it
 *   quota    operations of a player in a run of fixed work; else every player does the same, or
 *            with `has_producers` every producer
 *   report   writes the members of the result that are its own
 *
 * Four more make a workload that replays a file, chosen as NAME:FILE:
 *
 *   open     reads and checks the file before anything else; returns how many players it needs
 *   describe writes members about the opened file for --list
 *   arm      in the player's thread, after many steps that had to wait: sees to it that hz_wake()
 * is called for this player when it can go on; false when it can go on already. With it a waiting
 * player sleeps, and counts as parked meanwhile, instead of looking again
 *   between  whether a turn of whole rounds may end here: all other players wait for this one,
 * before the first round or after one
 */
typedef struct hz_workload {
    const char *name;   /* on the command line */
    const char *doc;    /* the shape, and what one operation is */
    const char *source; /* where the shape comes from */
    bool needs_two;     /* it has no sense with fewer players */
    bool has_producers; /* the first half of the players: see hz_producer_count */
    bool is_unsteady;   /* not every second is like the other: turns cannot measure it */
    unsigned batch;     /* most operations of one step; 0: HZ_BATCH */
    size_t state_bytes; /* of a player's state */
    const char *slots;  /* the parameter that says how many slots a player has, or NULL */
    hz_bench_param params[HZ_MAX_PARAMS + 1];       /* up to the first without a name */
    hz_bench_setting settings[HZ_MAX_SETTINGS + 1]; /* likewise */
    void (*prepare)(struct hz_run *run);
    void (*begin)(struct hz_player *p);
    size_t (*step)(struct hz_player *p, size_t most);
    bool (*drain)(struct hz_player *p, size_t *done);
    void (*end)(struct hz_player *p);
    uint64_t (*quota)(const struct hz_run *run, unsigned index);
    void (*report)(const struct hz_run *run, hz_json *json);
    unsigned (*open)(struct hz_options *options);
    void (*describe)(const struct hz_options *options, hz_json *json);
    bool (*arm)(struct hz_player *p);
    bool (*between)(const struct hz_player *p);
} hz_workload;

/* --- what was asked for ---------------------------------------------------------------------- */

typedef struct hz_options {
    const hz_workload *workload;   /* the shape */
    const char *setting;           /* name of the setting, or "" */
    const char *file;              /* of a workload that replays one, or NULL */
    const void *opened;            /* what its `open` has made of it */
    int64_t values[HZ_MAX_PARAMS]; /* the parameters, in the order of the table */
    unsigned threads;              /* players */
    double seconds;                /* length of the counted window */
    double warmup;                 /* seconds before the window */
    uint64_t ops;                  /* fixed work over all players; 0: a fixed time instead */
    uint64_t seed;                 /* of every random number */
    int turns_fd;                  /* memory of a conductor, or -1 */
    unsigned rests;                /* rounds of work and rest; 0: one round, without rest */
    bool latency;                  /* time each call */
    bool list;                     /* only list the workloads */
} hz_options;

/* --- a run and its players ------------------------------------------------------------------- */

/* A block under test, with what has to be known to account for it. */
typedef struct hz_block {
    void *at;      /* or NULL */
    uint32_t size; /* as requested */
} hz_block;

/* Sizes from `least` upwards, all equally likely. */
typedef struct hz_sizes {
    uint32_t least; /* bytes */
    uint64_t count; /* how many different sizes there are */
} hz_sizes;

/* A block that could not be sent yet: see mailbox.h. */
typedef struct hz_unsent {
    hz_block block;        /* {NULL} when there is none */
    struct hz_mailbox *to; /* where it goes */
} hz_unsent;

typedef struct hz_instruments hz_instruments;

/* What a player's `begin` has mapped, to be given back before it begins another round. */
typedef struct hz_mapped {
    struct {
        void *at;     /* the mapping */
        size_t bytes; /* its length */
    } parts[4];
    unsigned count; /* of `parts` that are in use */
} hz_mapped;

/* One player. The first lines are what steps use. */
typedef struct hz_player {
    _Alignas(HZ_LINE) uint64_t rng; /* random state */
    int64_t live_bytes;             /* requested less freed */
    void *state;                    /* the workload's own; zeros before `begin` */
    hz_block *slots;                /* behind the state: as many as `slots` of the workload says */
    uint32_t slot_count;            /* how many */
    hz_sizes sizes;                 /* from --min_size to --max_size, where there are these */
    struct hz_mailbox *inbox;       /* where others send it blocks, or NULL */
    hz_unsent unsent;               /* a block that found a full mailbox */
    struct hz_run *run;             /* the run it is part of */
    hz_instruments *instruments;    /* NULL where calls are not timed */
    unsigned index;                 /* 0.. */
    bool hand_over;                 /* set by a step: a new thread shall go on with this player */

    /* the harness's own */
    hz_turn_slot *slot;        /* where it publishes */
    uint64_t ops;              /* completed operations */
    uint64_t quota;            /* operations left in a run of fixed work */
    uint64_t waits;            /* steps in a row that had to wait */
    uint64_t wait_rng;         /* random state of the waiting, apart from the requests' */
    uint64_t past_involuntary; /* involuntary switches of its former threads */
    int64_t finished_ns;       /* when it had done its quota */
    bool begun;                /* whether `begin` was called */
    hz_mapped mapped;          /* what it has mapped; only where there are rests */
    pthread_t thread;          /* the one that works now; valid once it has finished */
    pthread_t previous;        /* the one that worked before and is to be joined */
    bool has_previous;         /* whether there is such a one */

    _Alignas(HZ_LINE) _Atomic uint32_t asleep; /* futex: 1 while it sleeps until hz_wake() */
} hz_player;

/*
 * Scattering: before every turn the players are spread over the CPUs anew, evenly and at random.
 *
 * Where more threads than CPUs hand each other work, much depends on which of them share a CPU, and
 * the system's scheduler settles that once and leaves it so: two copies of a program then differ by
 * 10 to 25 % for as long as they live, and no number of turns would average that away. A player is
 * only placed, not held: when it wakes it may go wherever the scheduler wants.
 */
typedef struct hz_scatter {
    cpu_set_t allowed;        /* CPUs that this process may use */
    unsigned cpus;            /* how many; 0: unknown, nothing is scattered */
    unsigned *cpu_list;       /* their numbers */
    unsigned players;         /* how many are to be placed */
    size_t places;            /* players or CPUs, whatever is more */
    size_t *order;            /* which place each player gets; a permutation of the places */
    _Atomic int *threads;     /* of each player: its thread id, when it parked last */
    _Atomic uint32_t waiting; /* players that wait for a turn */
    uint64_t rng;             /* random state */
} hz_scatter;

/* One run. */
typedef struct hz_run {
    const hz_options *options;       /* what was asked */
    const hz_workload *workload;     /* short for options->workload */
    const int64_t *values;           /* short for options->values */
    unsigned threads;                /* short for options->threads */
    unsigned cpus;                   /* CPUs that this process may use */
    void *shared;                    /* the workload's own */
    hz_player *players;              /* `threads` of them */
    hz_turn_page *page;              /* turns and counters */
    hz_scatter scatter;              /* where the players are woken */
    _Atomic uint32_t done;           /* futex: players that have done their quota or seen the end */
    pthread_barrier_t stopped;       /* where all meet before blocks are freed */
    unsigned rests_left;             /* rounds that still end with a rest */
    _Atomic int64_t live_peak_bytes; /* highest sum of live bytes that was seen */
    int64_t own_kb; /* resident memory that the workload keeps for itself; taken out
                       of every figure */
} hz_run;

/* What a run came to, apart from what stands in the players. */
typedef struct hz_result {
    double seconds;        /* length of the counted window */
    double cpu_s;          /* CPU time used in it */
    uint64_t ops;          /* operations completed in it */
    uint64_t minor_faults; /* page faults in it */
    int64_t live_peak_kb;  /* highest live bytes seen */
} hz_result;

/* --- the parts --------------------------------------------------------------------------- */

/* main.c */
const hz_bench_param *hz_find_param(const hz_workload *workload, const char *name);
const int64_t *hz_bench_value(const hz_options *options, const char *name);
const char *hz_setting_next(const char *values, char name[64], char value[64]);

/* list.c */
extern const hz_workload *const hz_workloads[];
void hz_list_print(hz_options *options);

/* harness.c */
unsigned hz_cpu_count(void);
void *hz_harness_alloc(size_t bytes);
void hz_harness_note(hz_mapped *mapped);
void hz_harness_give_back(hz_mapped *mapped);
void hz_harness_rest(void);
_Noreturn void hz_fail_memory(size_t bytes);
size_t hz_power_of_two(size_t least);
void hz_scatter_init(hz_scatter *scatter, unsigned players, uint64_t seed);
void hz_scatter_enter(hz_scatter *scatter, unsigned player);
void hz_scatter_leave(hz_scatter *scatter);

/* instruments.c */
hz_instruments *hz_instruments_new(void);
void *hz_take_timed(hz_instruments *instruments, void *old, size_t size);
void hz_free_timed(hz_instruments *instruments, void *block);
void hz_timer_take(hz_instruments *instruments, int64_t start_ns);
void hz_timer_give(hz_instruments *instruments, int64_t start_ns);
void hz_instruments_report(const hz_run *run, hz_json *json);

/* runner.c */
void hz_run_init(hz_run *run, const hz_options *options);
void hz_run_execute(hz_run *run, hz_result *result);
void hz_wake(hz_player *p);

/* How many players produce, where others consume what they do. */
static inline unsigned hz_producer_count(const hz_run *run)
{
    return run->threads / 2;
}

/* report.c */
void hz_report_run(const hz_run *run, const hz_result *result);

#endif
