/*
 * hz-record's side of a recording: see drain.h. A write that fails ends the log where the last
 * whole frame ends.
 */
#include "drain.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arguments.h"
#include "clock.h"
#include "procfs.h"

enum {
    COMMAND_BYTES = 4096,            /* of a command line that are kept */
    WAIT_NS = 10 * 1000000,          /* for leaves that are full */
    LOOK_NS = 100 * 1000000,         /* between two looks for ended threads */
    FLUSH_NS = 1000 * 1000000,       /* between two writes of leaves that fill slowly */
    FIRST_FLUSH_NS = 50 * 1000000,   /* after the start: the speed of the clock is soon known */
    LATEST_COUNT = 2 * HZ_LEAF_COUNT /* slots of a table of threads */
};

/* ---- the pool ------------------------------------------------------------------------------- */

/* Whether the processor's counter runs evenly, and the kernel trusts it on all CPUs. */
static uint32_t clock_to_use(void)
{
#if defined(__x86_64__)
    static const char path[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    char name[16];
    (void)hz_read_start(path, name, sizeof name);
    return strcmp(name, "tsc\n") == 0 ? HZ_CLOCK_COUNTER : HZ_CLOCK_RAW;
#elif defined(__aarch64__)
    return HZ_CLOCK_COUNTER;
#else
    return HZ_CLOCK_RAW;
#endif
}

void hz_drain_make_pool(hz_drain *drain)
{
    const int fd = memfd_create("hz-record", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)HZ_POOL_BYTES) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        hz_fail("no memory to record into: %s",
                errno == EFBIG ? "files may not have 128 MiB (ulimit -f)" : strerror(errno));
    hz_pool *pool = mmap(NULL, HZ_POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pool == MAP_FAILED) hz_fail("no memory to record into: %s", strerror(errno));
    pool->magic = HZ_POOL_MAGIC;
    pool->version = HZ_LOG_VERSION;
    pool->clock = clock_to_use();
    pool->recorder = getpid();
    for (size_t i = 0; i < HZ_LEAF_COUNT / HZ_POOL_BITS; i++)
        atomic_store(&pool->free_leaves[i], ULLONG_MAX);
    drain->pool = pool;
    (void)snprintf(drain->pool_path, sizeof drain->pool_path, "/proc/%d/fd/%d", (int)getpid(), fd);
}

/* The first leaf from `index` on that a thread fills or has filled; NULL: there is none. */
static hz_leaf *next_taken(hz_drain *drain, size_t *index)
{
    for (; *index < HZ_LEAF_COUNT; (*index)++) {
        const size_t word = *index / HZ_POOL_BITS, bit = *index % HZ_POOL_BITS;
        const unsigned long long taken = ~atomic_load(&drain->pool->free_leaves[word]) >> bit;
        *index += taken != 0 ? (size_t)__builtin_ctzll(taken) : HZ_POOL_BITS - 1 - bit;
        hz_leaf *leaf = hz_pool_leaf(drain->pool, *index);
        if (taken != 0 &&
            atomic_load_explicit(&leaf->head.state, memory_order_acquire) != HZ_LEAF_FREE)
            return leaf;
    }
    return NULL;
}

static void wake_threads(hz_pool *pool)
{
    (void)syscall(SYS_futex, &pool->freed, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Gives a leaf back to the threads. */
static void give_back(hz_drain *drain, size_t index)
{
    hz_pool *pool = drain->pool;
    drain->written[index] = 0;
    atomic_store(&hz_pool_leaf(pool, index)->head.state, HZ_LEAF_FREE);
    atomic_fetch_or(&pool->free_leaves[index / HZ_POOL_BITS], 1ull << index % HZ_POOL_BITS);
    atomic_fetch_add(&pool->freed, 1);
    if (atomic_exchange(&pool->is_scarce, 0) != 0) wake_threads(pool);
}

/* Says that nothing more is to be logged, and why. The first reason stays. */
static void end_pool(hz_pool *pool, unsigned why)
{
    unsigned open = HZ_POOL_OPEN;
    (void)atomic_compare_exchange_strong(&pool->ended, &open, why);
    wake_threads(pool);
}

/* ---- the log -------------------------------------------------------------------------------- */

/* Writes all of it, or sees to it that nothing of it is in the file. */
static bool write_whole(hz_drain *drain, const void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        const ssize_t written = pwrite(drain->fd, (const char *)bytes + done, count - done,
                                       (off_t)(drain->bytes + done));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            drain->failure = written < 0 ? errno : ENOSPC;
            (void)!ftruncate(drain->fd, (off_t)drain->bytes);
            return false;
        }
        done += (size_t)written;
    }
    drain->bytes += count;
    return true;
}

void hz_drain_open_log(hz_drain *drain, const char *path, bool is_woken)
{
    hz_log_header header = {
        .version = HZ_LOG_VERSION, .clock = drain->pool->clock, .is_woken = is_woken};
    drain->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (drain->fd < 0 && errno == EEXIST)
        hz_refuse("%s is there: another recording writes it, or one was cut; make a trace of it by "
                  "`hztune trace convert`, or remove it",
                  path);
    if (drain->fd < 0) hz_refuse("cannot write %s: %s", path, strerror(errno));
    memcpy(header.magic, HZ_LOG_MAGIC, sizeof header.magic);
    header.ns = hz_clock_monotonic_ns(CLOCK_MONOTONIC);
    header.stamp = hz_stamp(header.clock);
    header.checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &header, sizeof header / 8);
    if (!write_whole(drain, &header, sizeof header)) {
        (void)unlink(path);
        hz_refuse("cannot write %s: %s", path, strerror(drain->failure));
    }
}

/* Appends a frame, whose magic and checksum are filled in here; nothing from the first failure on.
 * What is written is a copy: a program may change its leaf behind the checksum. */
static void log_append(hz_drain *drain, hz_log_frame *frame, const void *content)
{
    static struct {
        hz_log_frame frame;
        uint64_t words[HZ_LEAF_BYTES / 8];
    } whole;
    const size_t words = (frame->bytes + 7) / 8;
    if (drain->failure != 0) return;
    frame->magic = HZ_FRAME_MAGIC;
    frame->checksum = 0;
    whole.frame = *frame;
    if (words > 0) whole.words[words - 1] = 0;
    memcpy(whole.words, content, frame->bytes);
    const size_t bytes = sizeof whole.frame + 8 * words;
    whole.frame.checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &whole, bytes / 8);
    (void)write_whole(drain, &whole, bytes);
}

/* ---- what /proc tells ----------------------------------------------------------------------- */

/* The name of a thread; zeros when it has ended. */
static void read_name(const hz_leaf_head *head, char name[HZ_TRACE_NAME_BYTES])
{
    char path[64];
    memset(name, 0, HZ_TRACE_NAME_BYTES);
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/comm", head->pid, head->tid);
    const size_t length = hz_read_start(path, name, HZ_TRACE_NAME_BYTES);
    if (length > 0 && name[length - 1] == '\n') name[length - 1] = '\0';
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
        frame.bytes = (uint32_t)hz_read_start(path, words, sizeof words);
    }
    log_append(drain, &frame, words);
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
        log_append(drain, &frame, leaf->events + start);
    }
    drain->written[index] = used;
    if (drain->failure != 0) end_pool(drain->pool, HZ_POOL_DISK);
}

/* Writes the leaves that are full, and with `all` the others, too; gives back what is full. */
static void drain_leaves(hz_drain *drain, bool all)
{
    hz_leaf *leaf;
    for (size_t i = 0; (leaf = next_taken(drain, &i)) != NULL; i++) {
        const bool is_full = atomic_load(&leaf->head.state) == HZ_LEAF_FULL;
        if (is_full || all) write_leaf(drain, i, leaf, is_full);
        if (is_full) give_back(drain, i);
    }
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

static void drain_ended(hz_drain *drain)
{
    static latest table[LATEST_COUNT];
    hz_leaf *leaf;
    memset(table, 0, sizeof table);
    for (size_t i = 0; (leaf = next_taken(drain, &i)) != NULL; i++) {
        latest *of = latest_of(table, leaf->head.tid);
        if (of->tid == 0 || of->thread < leaf->head.thread)
            *of = (latest){leaf->head.tid, leaf->head.thread};
    }
    for (size_t i = 0; (leaf = next_taken(drain, &i)) != NULL; i++) {
        const hz_leaf_head *head = &leaf->head;
        if (atomic_load_explicit(&head->state, memory_order_acquire) != HZ_LEAF_OWNED) continue;
        const bool is_gone = syscall(SYS_tgkill, head->pid, head->tid, 0) != 0 && errno == ESRCH;
        const latest *of = latest_of(table, head->tid);
        if (!is_gone && (of->tid == 0 || of->thread <= head->thread)) continue;
        write_leaf(drain, i, leaf, false);
        give_back(drain, i);
    }
}

/* ---- all together --------------------------------------------------------------------------- */

static void write_clock(hz_drain *drain, uint32_t kind)
{
    hz_log_frame frame = {.kind = kind, .bytes = sizeof(hz_log_end)};
    hz_log_end end = {.lost = atomic_load(&drain->pool->lost),
                      .why = atomic_load(&drain->pool->ended)};
    end.ns = hz_clock_monotonic_ns(CLOCK_MONOTONIC);
    end.stamp = hz_stamp(drain->pool->clock);
    log_append(drain, &frame, &end);
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
    drain_leaves(drain, false);
    if (now_ns - drain->looked_ns >= LOOK_NS || atomic_load(&drain->pool->is_scarce) != 0) {
        drain->looked_ns = now_ns;
        drain_ended(drain);
    }
    if ((int64_t)(now_ns - drain->flushed_ns) >= FLUSH_NS) {
        drain->flushed_ns = now_ns;
        write_clock(drain, HZ_FRAME_CLOCK);
        drain_leaves(drain, true);
    }
    (void)syscall(SYS_futex, &drain->pool->full, FUTEX_WAIT, seen,
                  &(struct timespec){.tv_nsec = WAIT_NS}, NULL, 0);
}

void hz_drain_end(hz_drain *drain)
{
    end_pool(drain->pool, HZ_POOL_STOPPED);
    drain_leaves(drain, false);
    drain_leaves(drain, true);
    drain->failure = 0; /* where a leaf had no room, these few bytes may have */
    write_clock(drain, HZ_FRAME_END);
    /* The processes keep the pool mapped as long as they live. */
    (void)madvise(hz_pool_leaf(drain->pool, 0), HZ_LEAF_COUNT * HZ_LEAF_BYTES, MADV_REMOVE);
}
