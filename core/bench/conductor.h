/*
 * The conductor: keeps several warm processes of one program, the arms, and gives them short turns
 * in random order.
 *
 * Glossary
 *
 *   arm        one process of an arm: the program under one environment
 *   turn       the time in which one arm's threads work and those of all others are parked. The
 *              beginning of a turn (skip_ns) is not counted
 *   round      one turn of every arm that is alive, in random order
 */
#ifndef HZ_BENCH_CONDUCTOR_H
#define HZ_BENCH_CONDUCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "child.h"
#include "json.h"
#include "turns.h"

enum { HZ_ARMS_MAX = 64, HZ_CHANGES_MAX = 128 };

typedef struct hz_arm {
    const char *key;       /* its name in the events */
    const char *changes[HZ_CHANGES_MAX + 1]; /* to the environment; NULL behind the last */
    size_t change_count;                     /* how many */
    const char *program;   /* to run instead of the common one, or NULL */
    hz_child child;        /* its process */
    hz_turn_page *page;    /* its turns and counters */
    bool told_to_quit;     /* whether its end is due */
    bool held;             /* whether it is stopped, and not only parked */
    bool gone;             /* whether it has ended and was reported */
} hz_arm;

/* What the command line asked for, and the state of the whole. */
typedef struct hz_conductor {
    int64_t turn_ns;      /* length of a turn */
    int64_t skip_ns;      /* its uncounted beginning */
    int64_t warmup_ns;    /* of each arm, before the first round */
    int64_t ready_ns;     /* patience with an arm that starts */
    int64_t stall_ns;     /* patience with an arm that does not park */
    int64_t rss_limit_kb; /* most resident memory of an arm; 0: no limit */
    uint64_t seed;        /* of the order */
    unsigned rounds;      /* how many */
    bool ask;             /* after the rounds, ask on stdin for more of them */
    bool is_whole;        /* a turn ends where a round of the arm's workload does, and is counted
                             from its beginning */
    char **program;       /* what to run; "--turns 3" is appended */
    hz_arm *arms;         /* HZ_ARMS_MAX, lazily touched */
    size_t arm_count;     /* how many are used */

    int signal_fd;      /* readable when a signal asks for the end */
    bool interrupted;   /* whether one did */
    uint64_t rng;       /* random state */
} hz_conductor;

/* --- arms.c: waiting for arms without losing sight of any, and what is written of them ---------
 */

/*
 * Waits until `deadline_ns`, reading what the arms write and reporting those that end. Returns
 * early, with false, when an arm ended or an end was asked for.
 */
bool hz_watch(hz_conductor *conductor, int64_t deadline_ns);

/* Kills an arm for a reason ("hang", "oom") and reports its end. */
void hz_arm_kill(hz_arm *arm, const char *reason);

/* Resident KiB of an arm, without what its program keeps for itself. */
int64_t hz_arm_rss_kb(const hz_arm *arm);

/* Kills the arm if it is too big. */
void hz_arm_check_memory(const hz_conductor *conductor, hz_arm *arm);

/* How many arms are alive. */
size_t hz_arms_alive(const hz_conductor *conductor);

/* The beginning of an event, one JSON object a line; `arm` may be NULL. */
hz_json hz_arm_event(const char *event, const hz_arm *arm);

#endif
