/*
 * A tree of processes that is stopped and continued as a whole.
 *
 * Processes are found by descent. Their roots adopt orphans (hz_become_keeper), so that one that
 * left its session, or lost its parent, is found, too.
 *
 * They are stopped in one of two ways.
 *   freezer  A control group (version 2) holds them all, and the kernel freezes it: new processes
 *            and processes of other users, too. A program sees nothing of it: no signal, no child
 *            that stopped. One that stops itself stays so, as it does alone.
 *   signals  SIGSTOP to each process that is found, until two looks in a row find all of them
 *            stopped; then SIGCONT, also to one that has stopped itself. A handler of SIGCONT runs,
 *            and a parent may be told that its child stopped.
 */
#ifndef HZ_BENCH_TREE_H
#define HZ_BENCH_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { HZ_TREE_MAX = 4096, HZ_ROOTS_MAX = 2 };

typedef struct hz_tree {
    pid_t roots[HZ_ROOTS_MAX]; /* whose descendants it is; they themselves are never stopped */
    size_t root_count;         /* how many */
    pid_t pids[HZ_TREE_MAX];   /* its processes, as of the last look */
    size_t count;              /* how many */
    int64_t threads;           /* most that one process has had */
    bool was_awake;            /* at the last look: whether a thread ran or wanted to */
    bool was_beside;           /* the same of a thread that is not the first of its process */
    bool is_frozen_whole;      /* whether it is stopped by a freezer, else by signals */
    int freeze_fd;             /* the freezer's cgroup.freeze */
    int events_fd;             /* the freezer's cgroup.events, which tells when all are frozen */
    bool was_stopped;          /* at the last look: whether a thread had stopped itself */
    bool stands;               /* the same: whether all had, and none is deep in the kernel */
} hz_tree;

/* Has the tree stopped by the control group in a folder; false, with errno, when it cannot be. */
bool hz_tree_use_freezer(hz_tree *tree, const char *folder);

/* Adds a root. */
void hz_tree_root(hz_tree *tree, pid_t root);

/* Forgets a root that has ended. */
void hz_tree_uproot(hz_tree *tree, pid_t root);

/* Looks at all processes, without stopping any. */
void hz_tree_look(hz_tree *tree);

/*
 * Looks at them, stops all of them, and returns when all stand, new ones too. Gives for how many
 * nanoseconds of that it did not work, where it is one thread; of more threads that is not known:
 * 0.
 */
int64_t hz_tree_stop(hz_tree *tree);

/* Continues them. */
void hz_tree_go(const hz_tree *tree);

/* CPU time that the descendants of a root have used, also those that their parents have reaped. */
int64_t hz_tree_cpu_ns(pid_t root);

#endif
