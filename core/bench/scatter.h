/*
 * Scattering: before every turn the players are spread over the CPUs anew, evenly and at random.
 *
 * Where more threads than CPUs hand each other work, much depends on which of them share a CPU, and
 * the system's scheduler settles that once and leaves it so: two copies of a program then differ by
 * 10 to 25 % for as long as they live, and no number of turns would average that away. A player is
 * only placed, not held: when it wakes it may go wherever the scheduler wants.
 */
#ifndef HZ_BENCH_SCATTER_H
#define HZ_BENCH_SCATTER_H

#include <sched.h>
#include <stdint.h>

typedef struct hz_scatter {
    cpu_set_t allowed;        /* CPUs that this process may use */
    unsigned cpus;            /* how many; 0: unknown, nothing is scattered */
    unsigned *cpu_list;       /* their numbers */
    unsigned players;         /* how many are to be placed */
    unsigned places;          /* players or CPUs, whatever is more */
    unsigned *order;          /* which place each player gets; a permutation of the places */
    _Atomic int *threads;     /* of each player: its thread id, when it parked last */
    _Atomic uint32_t waiting; /* players that wait for a turn */
    uint64_t rng;             /* random state */
} hz_scatter;

/* Prepares `scatter` for that many players. */
void hz_scatter_init(hz_scatter *scatter, unsigned players, uint64_t seed);

/* The calling thread begins to wait for a turn. The last one that does places them all. */
void hz_scatter_enter(hz_scatter *scatter, unsigned player);

/* The calling thread has been given a turn, and is free to go where it likes. */
void hz_scatter_leave(hz_scatter *scatter);

#endif
