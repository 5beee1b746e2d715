/*
 * Emptying the pool: see drain.h.
 */
#include "drain.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

enum {
    COMMAND_BYTES = 4096,            /* of a command line that are kept */
    LOOK_NS = 100 * 1000000,         /* between two looks for ended threads */
    FLUSH_NS = 1000 * 1000000,       /* between two writes of leaves that fill slowly */
    FIRST_FLUSH_NS = 50 * 1000000,   /* after the start: the speed of the clock is soon known */
    LATEST_COUNT = 2 * HZ_LEAF_COUNT /* slots of a table of threads */
};

/* ---- what /proc tells ----------------------------------------------------------------------- */

static size_t words_of(const char *path, char *text, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t length = read(fd, text, size);
    (void)close(fd);
    return length > 0 ? (size_t)length : 0;
}

/* The name of a thread; zeros when it has ended. */
static void read_name(const hz_leaf_head *head, char name[HZ_TRACE_NAME_BYTES])
{
    char path[64];
    memset(name, 0, HZ_TRACE_NAME_BYTES);
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/comm", head->pid, head->tid);
    const size_t length = words_of(path, name, HZ_TRACE_NAME_BYTES);
    if (length > 0) name[length - 1] = '\0'; /* the end of the line */
}

/* The words with a zero byte behind each, as /proc has them. */
static size_t join_words(char *const *words, char *text, size_t size)
{
    size_t used = 0;
    for (; *words != NULL && used + strlen(*words) + 1 <= size; words++)
        used += (size_t)snprintf(text + used, size - used, "%s", *words) + 1;
    return used;
}

static void write_image(hz_drain *drain, const hz_leaf_head *head)
{
    char path[64];
    char words[COMMAND_BYTES];
    hz_log_frame frame = {.kind = HZ_FRAME_IMAGE, .image = head->image, .pid = head->pid};
    if (head->image < HZ_IMAGES_MAX) {
        if (drain->is_known[head->image]) return;
        drain->is_known[head->image] = true;
    }
    read_name(head, frame.name);
    if (head->image == 0 && head->pid == drain->words_pid) { /* it may execute another one soon */
        frame.bytes = (uint32_t)join_words(drain->words, words, sizeof words);
    } else {
        (void)snprintf(path, sizeof path, "/proc/%d/cmdline", head->pid);
        frame.bytes = (uint32_t)words_of(path, words, sizeof words);
    }
    (void)hz_log_append(&drain->log, &frame, words);
}

/* ---- leaves --------------------------------------------------------------------------------- */

/* Writes what a leaf has and the log has not. What is checked of its head is a copy: a program may
 * write there what it likes. */
static void write_leaf(hz_drain *drain, size_t index, hz_leaf *leaf, bool is_full)
{
    hz_leaf_head copy;
    const hz_leaf_head *head = memcpy(&copy, &leaf->head, sizeof copy);
    uint32_t used = atomic_load_explicit(&leaf->head.used, memory_order_acquire);
    const uint32_t start = drain->written[index];
    if (used > sizeof leaf->events) used = sizeof leaf->events;
    if (start == 0 && head->number == 0) write_image(drain, head);
    if (used > start) {
        hz_log_frame frame = {.kind = HZ_FRAME_EVENTS,
                              .bytes = used - start,
                              .image = head->image,
                              .thread = head->thread,
                              .number = head->number,
                              .start = start,
                              .pid = head->pid};
        if (!is_full || head->number == 0) read_name(head, frame.name);
        (void)hz_log_append(&drain->log, &frame, leaf->events + start);
    }
    drain->written[index] = used;
    if (drain->log.failure != 0) hz_pool_end(drain->pool, HZ_POOL_DISK);
}

static void give_back(hz_drain *drain, size_t index)
{
    drain->written[index] = 0;
    hz_pool_free(drain->pool, index);
}

static void drain_full(void *context, size_t index, hz_leaf *leaf)
{
    hz_drain *drain = context;
    if (atomic_load_explicit(&leaf->head.state, memory_order_acquire) != HZ_LEAF_FULL) return;
    write_leaf(drain, index, leaf, true);
    give_back(drain, index);
}

static void drain_owned(void *context, size_t index, hz_leaf *leaf)
{
    hz_drain *drain = context;
    if (atomic_load_explicit(&leaf->head.state, memory_order_acquire) == HZ_LEAF_FREE) return;
    write_leaf(drain, index, leaf, false);
}

/* ---- threads that have ended ---------------------------------------------------------------- */

/* The latest thread of the pool that had each thread id: an earlier one has ended. */
typedef struct latest {
    int32_t tid;     /* 0: this slot is empty */
    uint32_t thread; /* its number in the pool */
} latest;

static latest *latest_of(latest *table, int32_t tid)
{
    size_t at = (uint32_t)tid * UINT32_C(2654435761) % LATEST_COUNT;
    while (table[at].tid != 0 && table[at].tid != tid) at = (at + 1) % LATEST_COUNT;
    return &table[at];
}

static void note_latest(void *context, size_t index, hz_leaf *leaf)
{
    latest *of = latest_of(context, leaf->head.tid);
    (void)index;
    if (atomic_load_explicit(&leaf->head.state, memory_order_acquire) == HZ_LEAF_FREE) return;
    if (of->tid == 0 || of->thread < leaf->head.thread)
        *of = (latest){leaf->head.tid, leaf->head.thread};
}

typedef struct search {
    hz_drain *drain; /* whose pool is looked through */
    latest *table;   /* of all its threads */
} search;

static void drain_ended(void *context, size_t index, hz_leaf *leaf)
{
    const search *looking = context;
    const hz_leaf_head *head = &leaf->head;
    if (atomic_load_explicit(&leaf->head.state, memory_order_acquire) != HZ_LEAF_OWNED) return;
    const bool is_gone = syscall(SYS_tgkill, head->pid, head->tid, 0) != 0 && errno == ESRCH;
    const latest *of = latest_of(looking->table, head->tid);
    if (!is_gone && (of->tid == 0 || of->thread <= head->thread)) return;
    write_leaf(looking->drain, index, leaf, false);
    give_back(looking->drain, index);
}

static void drain_all_ended(hz_drain *drain)
{
    static latest table[LATEST_COUNT];
    search looking = {drain, table};
    memset(table, 0, sizeof table);
    hz_pool_each(drain->pool, note_latest, table);
    hz_pool_each(drain->pool, drain_ended, &looking);
}

/* ---- all together --------------------------------------------------------------------------- */

static void write_clock(hz_drain *drain, uint32_t kind)
{
    hz_log_frame frame = {.kind = kind, .bytes = sizeof(hz_log_end)};
    hz_log_end end = {.lost = atomic_load(&drain->pool->lost),
                      .why = atomic_load(&drain->pool->ended)};
    end.ns = hz_clock_monotonic_ns(CLOCK_MONOTONIC);
    end.stamp = hz_stamp(drain->pool->clock);
    (void)hz_log_append(&drain->log, &frame, &end);
}

void hz_drain_start(hz_drain *drain)
{
    drain->looked_ns = hz_clock_monotonic_ns(CLOCK_MONOTONIC);
    drain->flushed_ns = drain->looked_ns + FIRST_FLUSH_NS - FLUSH_NS;
}

void hz_drain_step(hz_drain *drain)
{
    const unsigned seen = atomic_load(&drain->pool->full);
    const uint64_t now_ns = hz_clock_monotonic_ns(CLOCK_MONOTONIC);
    hz_pool_each(drain->pool, drain_full, drain);
    if (now_ns - drain->looked_ns >= LOOK_NS || atomic_load(&drain->pool->is_scarce) != 0) {
        drain->looked_ns = now_ns;
        drain_all_ended(drain);
    }
    if ((int64_t)(now_ns - drain->flushed_ns) >= FLUSH_NS) {
        drain->flushed_ns = now_ns;
        write_clock(drain, HZ_FRAME_CLOCK);
        hz_pool_each(drain->pool, drain_owned, drain);
    }
    hz_pool_wait(drain->pool, seen);
}

void hz_drain_end(hz_drain *drain)
{
    hz_pool_end(drain->pool, HZ_POOL_STOPPED);
    hz_pool_each(drain->pool, drain_full, drain);
    hz_pool_each(drain->pool, drain_owned, drain);
    drain->log.failure = 0; /* where a leaf had no room, these few bytes may have */
    write_clock(drain, HZ_FRAME_END);
}
