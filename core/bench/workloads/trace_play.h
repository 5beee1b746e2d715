/*
 * Playing the words of a trace: what a player of the trace workload is made of, its operations and
 * its waits. See trace.c.
 */
#ifndef HZ_BENCH_TRACE_PLAY_H
#define HZ_BENCH_TRACE_PLAY_H

#include "bench.h"
#include "walk.h"
#include "trace_calls.h"

/* The rows of the workload's parameters. */
enum { HZ_TRACE_PACE, HZ_TRACE_ROUNDS };

/* In a cell: the thread that waits for the cell to change sleeps. Addresses are even. */
#define HZ_TRACE_SLEEPER ((uintptr_t)1)

typedef enum hz_trace_stage { UNBORN, ALIVE, DEAD, FREED, LAST } hz_trace_stage;

/* What a player waits for. */
typedef enum hz_trace_cause {
    NOTHING,
    CELL_FULL,
    CELL_EMPTY,
    THREAD_END,
    SPAWN,
    PHASE,
    TIME
} hz_trace_cause;

/* What others look at of a player; each has a line of its own. */
typedef struct hz_trace_life {
    _Alignas(HZ_LINE) _Atomic uint32_t spawned; /* rounds in which it was spawned */
    _Atomic uint32_t ended;                     /* rounds in which it has played its words */
} hz_trace_life;

/* What the players share. */
typedef struct hz_trace_shared {
    hz_rehearsed made;                        /* the file, and what belongs to it */
    hz_looked_up calls;                       /* functions that were looked up */
    hz_trace_life *lives;                     /* of each player */
    uint32_t last_round;                      /* the round that ends it; 0: none */
    _Alignas(HZ_LINE) _Atomic uint32_t phase; /* grows when all are FREED, and when all are DEAD */
    _Atomic uint32_t arrived;                 /* players that wait for that */
    _Atomic int64_t round_ns;                 /* when the present round began; 0: it has not */
} hz_trace_shared;

typedef struct hz_trace_state {
    const uint64_t *at;        /* the next word */
    const uint64_t *end;       /* of the chunk's words */
    void **slots;              /* blocks of this thread */
    const uint64_t *old_sizes; /* what the next reallocs find */
    uint64_t time_ns;          /* of the last operation, since the start of the trace */
    _Atomic uintptr_t *cells;  /* of all threads */
    hz_trace_shared *all;      /* short for the run's */
    uint32_t chunk;            /* chunks that it has begun */
    uint32_t round;            /* 1.., and 0 before the first */
    uint32_t left_thread;      /* whose slots are looked through for what is left */
    uint32_t left_slot;        /* the next of them */
    hz_trace_stage stage;      /* of its course, see trace.c */
    hz_trace_cause cause;      /* what it waits for */
    uint32_t waits_for;        /* which cell, thread or phase */
    bool is_plain;             /* no times, no pace */
} hz_trace_state;

/* A thread as the file has it. */
static inline const hz_trace_thread *hz_trace_recorded(const hz_trace_state *s, unsigned index)
{
    return &s->all->made.trace.threads[index];
}

/* From now on the player waits for that. */
static inline void hz_trace_wait(hz_trace_state *s, hz_trace_cause why, uint32_t what)
{
    s->cause = why;
    s->waits_for = what;
}

/* Whether what the player waits for has come. */
bool hz_trace_is_over(const hz_trace_state *s);

/* The workload's `arm`. */
bool hz_trace_arm(hz_player *p);

/* Plays at most `most` calls, until the player has to wait; *ended: there are no more words. */
size_t hz_trace_play(hz_player *p, hz_trace_state *s, size_t most, bool *ended);

#endif
