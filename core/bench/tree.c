/*
 * Stopping and continuing a tree of processes: see tree.h.
 */
#include "tree.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "procfs.h"
#include "turns.h"

enum {
    NAP_NS = 20000,        /* between two looks at what is to stop, at least */
    NAP_SHARE = 8,         /* of the time that it has taken so far, at most */
    DEEP_NS = 2000000,     /* after which one that sleeps in the kernel counts as stopped */
    PATIENCE_NS = 1 << 30, /* with one that does not stop at all, about a second */
};

void hz_tree_root(hz_tree *tree, pid_t root)
{
    tree->roots[tree->root_count++] = root;
}

void hz_tree_uproot(hz_tree *tree, pid_t root)
{
    size_t kept = 0;
    for (size_t i = 0; i < tree->root_count; i++)
        if (tree->roots[i] != root) tree->roots[kept++] = tree->roots[i];
    tree->root_count = kept;
}

/* Finds all processes anew; returns whether there are the same as before. */
static bool find_pids(hz_tree *tree)
{
    static pid_t found[HZ_TREE_MAX];
    size_t count = 0;
    for (size_t i = 0; i < tree->root_count; i++)
        count += hz_proc_descendants(tree->roots[i], found + count, HZ_TREE_MAX - count);
    const bool same =
        count == tree->count && memcmp(found, tree->pids, count * sizeof found[0]) == 0;
    memcpy(tree->pids, found, count * sizeof found[0]);
    tree->count = count;
    return same;
}

/* --- states ---------------------------------------------------------------------------------- */

static hz_states look_at_threads(hz_tree *tree)
{
    hz_states sum = {0};
    for (size_t i = 0; i < tree->count; i++) hz_proc_add_states(tree->pids[i], &sum);
    if (sum.threads > tree->threads) tree->threads = sum.threads;
    return sum;
}

void hz_tree_look(hz_tree *tree)
{
    (void)find_pids(tree);
    const hz_states now = look_at_threads(tree);
    tree->was_awake = now.running;
    tree->was_beside = now.beside;
    tree->was_stopped = now.stopped;
    tree->stands = now.stopped && !now.running && !now.sleeping && !now.deep;
}

/* --- by signals ------------------------------------------------------------------------------ */

/* The longer it takes, the longer: on busy CPUs each look keeps from running what is to stop. */
static void nap(int64_t age_ns)
{
    const int64_t nap_ns = age_ns / NAP_SHARE;
    (void)nanosleep(&(struct timespec){.tv_nsec = nap_ns > NAP_NS ? nap_ns : NAP_NS}, NULL);
}

static void send(const hz_tree *tree, int number)
{
    for (size_t i = 0; i < tree->count; i++) (void)kill(tree->pids[i], number);
}

/*
 * All have stopped when two looks in a row find the same processes, all of them dead or stopped: a
 * child that was forked while the signals went out is found by the next look. A process that sleeps
 * in the kernel counts as stopped, too. It does no work, and stops when it comes back from there
 * (after a vfork, when its child is gone).
 */
static void stop_by_signals(hz_tree *tree)
{
    const int64_t start_ns = hz_clock_ns();
    send(tree, SIGSTOP);
    for (int64_t age_ns = 0; age_ns < PATIENCE_NS; age_ns = hz_clock_ns() - start_ns) {
        const bool same = find_pids(tree);
        if (!same) send(tree, SIGSTOP);
        const hz_states now = look_at_threads(tree);
        const bool stopping = now.running || now.sleeping || (now.deep && age_ns < DEEP_NS);
        if (same && !stopping) return;
        nap(age_ns);
    }
}

/* --- by a freezer ---------------------------------------------------------------------------- */

static int open_in(const char *folder, const char *name, int flags)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return open(path, flags | O_CLOEXEC);
}

bool hz_tree_use_freezer(hz_tree *tree, const char *folder)
{
    tree->freeze_fd = open_in(folder, "cgroup.freeze", O_WRONLY);
    tree->events_fd = open_in(folder, "cgroup.events", O_RDONLY);
    tree->is_frozen_whole = tree->freeze_fd >= 0 && tree->events_fd >= 0;
    return tree->is_frozen_whole;
}

static bool is_frozen(const hz_tree *tree)
{
    char text[128];
    const ssize_t got = pread(tree->events_fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    return strstr(text, "frozen 1") != NULL;
}

/*
 * The file is read again and again: the kernel wakes a reader that polls it once in 10 ms at most.
 * One that sleeps in the kernel counts as stopped here, too.
 */
static void freeze(hz_tree *tree)
{
    const int64_t start_ns = hz_clock_ns();
    (void)!pwrite(tree->freeze_fd, "1", 1, 0);
    for (int64_t age_ns = 0; age_ns < PATIENCE_NS; age_ns = hz_clock_ns() - start_ns) {
        if (is_frozen(tree)) return;
        if (age_ns >= DEEP_NS) {
            (void)find_pids(tree);
            const hz_states now = look_at_threads(tree);
            if (now.deep && !now.running) return;
        }
        nap(age_ns);
    }
}

/* --- turns ----------------------------------------------------------------------------------- */

int64_t hz_tree_stop(hz_tree *tree)
{
    hz_tree_look(tree);
    const bool is_one_thread = tree->count == 1 && tree->threads == 1;
    const int64_t used_ns = is_one_thread ? hz_proc_cpu_ns(tree->pids[0]) : 0;
    const int64_t start_ns = hz_clock_ns();
    if (tree->is_frozen_whole)
        freeze(tree);
    else
        stop_by_signals(tree);
    const int64_t took_ns = hz_clock_ns() - start_ns;
    if (used_ns == 0) return 0;
    const int64_t worked_ns = hz_proc_cpu_ns(tree->pids[0]) - used_ns;
    return worked_ns < 0 || worked_ns > took_ns ? 0 : took_ns - worked_ns;
}

void hz_tree_go(const hz_tree *tree)
{
    if (tree->is_frozen_whole)
        (void)!pwrite(tree->freeze_fd, "0", 1, 0);
    else
        send(tree, SIGCONT);
}

int64_t hz_tree_cpu_ns(pid_t root)
{
    static pid_t pids[HZ_TREE_MAX];
    const size_t count = hz_proc_descendants(root, pids, HZ_TREE_MAX);
    int64_t sum = hz_proc_reaped_ns(root);
    for (size_t i = 0; i < count; i++) sum += hz_proc_cpu_ns(pids[i]) + hz_proc_reaped_ns(pids[i]);
    return sum;
}
