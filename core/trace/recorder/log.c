/*
 * The seldom part of logging: waking up, the pool, leaves, and what a fork changes.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    PATH_BYTES = 128,
    LIFE_BYTES = 4096,
    LEAVES_A_WAKE = 8,            /* leaves that are full before hz-record is woken */
    PATIENCE_NS = 2 * 1000000000, /* that a thread waits for a leaf */
    WAIT_NS = 10 * 1000000,       /* of that at once, so that it sees when hz-record has gone */
};

/* What this process does. */
enum { UNKNOWN, STARTING, OFF, ASLEEP, AWAKE };

_Thread_local hz_thread_log hz_log;
static const uint32_t no_life = 0;
const volatile uint32_t *hz_life = &no_life;
atomic_bool hz_log_is_alone = true;
uint32_t hz_log_clock = HZ_CLOCK_COUNTER;

static atomic_uint mode;
static atomic_flag is_waking = ATOMIC_FLAG_INIT;
static bool is_sleeper;                    /* it can be woken, again and again */
static uint32_t *life_page;                /* what hz_life points to, for writing */
static uint32_t lives;                     /* numbers that it has had */
static char pool_path[PATH_BYTES];         /* where the pool can be opened */
static hz_pool *pool;                      /* of this process, when it is awake */
static uint32_t image;                     /* its number in the pool */
static _Atomic(hz_thread_log *) first_log; /* of the thread that was the first to log */

static void wait_on(atomic_uint *word, unsigned seen)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &(struct timespec){.tv_nsec = WAIT_NS}, NULL,
                  0);
}

static void wake_on(atomic_uint *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- the bell, by which hz-record wakes a recorder that sleeps: see log_format.h ---------------
 */

static hz_bell *bell;
static unsigned heard; /* rings that were answered */

/*
 * The segment is given up as soon as it is mapped: the kernel removes it with this process, however
 * that ends. It needs no descriptor, which the program may close, and no path.
 */
static bool bell_hang(void)
{
    bell = NULL; /* a child does not have its parent's */
    heard = 0;
    const int id = shmget(IPC_PRIVATE, sizeof(hz_bell), IPC_CREAT | 0600);
    if (id < 0) return false;
    void *mapped = shmat(id, NULL, 0);
    (void)shmctl(id, IPC_RMID, NULL);
    if (mapped == (void *)-1) return false;
    if (madvise(mapped, sizeof(hz_bell), MADV_DONTFORK) != 0) {
        (void)shmdt(mapped);
        return false;
    }
    bell = mapped;
    bell->version = HZ_LOG_VERSION;
    bell->magic = HZ_BELL_MAGIC;
    return true;
}

/* Whether hz-record has rung since the last answer. */
static bool bell_rings(void)
{
    return bell != NULL && atomic_load_explicit(&bell->rings, memory_order_acquire) != heard;
}

/* Copies where the pool is: `pool_path` is longer, and zero behind that. */
static void bell_answer(void)
{
    heard = atomic_load_explicit(&bell->rings, memory_order_acquire);
    memcpy(pool_path, bell->pool_path, sizeof bell->pool_path);
    pool_path[sizeof bell->pool_path] = '\0';
}
static_assert(sizeof pool_path > HZ_BELL_PATH_BYTES, "a zero follows what is copied");

/* ---- starting ------------------------------------------------------------------------------- */

/* A page that a forked child finds empty, however it was forked. */
static bool make_life(void)
{
    if (life_page == NULL) {
        void *page =
            mmap(NULL, LIFE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED || madvise(page, LIFE_BYTES, MADV_WIPEONFORK) != 0) return false;
        life_page = page;
    }
    *life_page = ++lives;
    hz_life = life_page;
    return true;
}

/* Another process may have the number of an hz-record that ended, and another file in the place: of
 * another user, perhaps a pool to read along, or to write other counts into. */
static bool may_be_pool(int fd)
{
    struct stat about;
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &about) == 0 &&
           about.st_size == (off_t)HZ_POOL_BYTES &&
           (about.st_uid == 0 || about.st_uid == geteuid());
}

/* Maps the pool; false when it is not there any more, or closed. */
static bool open_pool(void)
{
    const int fd = open(pool_path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return false;
    void *mapped = MAP_FAILED;
    if (may_be_pool(fd))
        mapped = mmap(NULL, HZ_POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (mapped == MAP_FAILED) return false;
    hz_pool *opened = mapped;
    if (opened->magic != HZ_POOL_MAGIC || opened->version != HZ_LOG_VERSION ||
        atomic_load(&opened->ended) != HZ_POOL_OPEN ||
        madvise(mapped, HZ_POOL_BYTES, MADV_DONTFORK) != 0) {
        (void)munmap(mapped, HZ_POOL_BYTES);
        return false;
    }
    pool = opened;
    image = atomic_fetch_add(&pool->image_count, 1);
    hz_log_clock = pool->clock;
    return true;
}

/*
 * Finds out what is asked of this process, once it has an environment: at the latest before main,
 * which may take away the environment, the root or the right to open files.
 */
__attribute__((constructor)) static void log_start(void)
{
    unsigned found = OFF;
    unsigned seen = UNKNOWN;
    if (environ == NULL || !atomic_compare_exchange_strong(&mode, &seen, STARTING)) return;
    const char *asked = secure_getenv(HZ_RECORD_VARIABLE);
    if (asked != NULL && strlen(asked) < sizeof pool_path && make_life()) {
        strcpy(pool_path, asked);
        is_sleeper = strcmp(asked, HZ_RECORD_ASLEEP) == 0;
        if (is_sleeper && bell_hang()) found = ASLEEP;
        if (!is_sleeper && open_pool()) found = AWAKE;
    }
    atomic_store(&mode, found);
}

/*
 * A forked child is an image of its own; the pool of its parent is not mapped here. It goes on as
 * its parent was, and where that can be woken, so can the child.
 */
static void start_again(void)
{
    const unsigned was = atomic_load(&mode);
    unsigned found = OFF;
    pool = NULL;
    atomic_flag_clear(&is_waking);
    atomic_store(&first_log, NULL);
    atomic_store(&hz_log_is_alone, true);
    hz_log.leaf = NULL;
    if (make_life()) {
        if (is_sleeper && bell_hang()) found = ASLEEP;
        if (was == AWAKE && open_pool()) found = AWAKE;
    }
    atomic_store(&mode, found);
}

/*
 * Opens the pool that a ring of the bell named. Every thread then begins a log in it; a pool that
 * was used before stays mapped, as threads may still write to it.
 */
static void wake_up(void)
{
    if (atomic_flag_test_and_set(&is_waking)) return;
    bell_answer();
    if (open_pool()) {
        *life_page = ++lives;
        atomic_store(&mode, AWAKE);
    }
    atomic_flag_clear(&is_waking);
}

static bool has_recorder(void)
{
    return kill(pool->recorder, 0) == 0 || errno != ESRCH;
}

/* Whether hz-record has rung, and no other one empties the pool that this process fills. */
static bool is_wanted(void)
{
    const unsigned now = atomic_load(&mode);
    if ((now != ASLEEP && now != AWAKE) || !bell_rings()) return false;
    return now == ASLEEP || atomic_load(&pool->ended) != HZ_POOL_OPEN || !has_recorder();
}

/* ---- leaves --------------------------------------------------------------------------------- */

/* Takes the first free leaf: the same few are used again and again. */
static hz_leaf *take_free(void)
{
    for (size_t i = 0; i < HZ_LEAF_COUNT / HZ_POOL_BITS; i++) {
        unsigned long long bits = atomic_load(&pool->free_leaves[i]);
        while (bits != 0) {
            const unsigned long long rest = bits & (bits - 1);
            if (!atomic_compare_exchange_weak(&pool->free_leaves[i], &bits, rest)) continue;
            return hz_pool_leaf(pool, i * HZ_POOL_BITS + (size_t)__builtin_ctzll(bits));
        }
    }
    return NULL;
}

/* Waits a while for a free leaf; without one, the recording is over for all. */
static hz_leaf *wait_for_free(void)
{
    const uint64_t until_ns = hz_clock_monotonic_ns(CLOCK_MONOTONIC) + PATIENCE_NS;
    while (hz_clock_monotonic_ns(CLOCK_MONOTONIC) < until_ns && has_recorder()) {
        const unsigned seen = atomic_load(&pool->freed);
        atomic_store(&pool->is_scarce, 1);
        hz_leaf *leaf = take_free();
        if (leaf != NULL || atomic_load(&pool->ended) != HZ_POOL_OPEN) return leaf;
        wake_on(&pool->full);
        wait_on(&pool->freed, seen);
    }
    unsigned open = HZ_POOL_OPEN;
    (void)atomic_compare_exchange_strong(&pool->ended, &open, HZ_POOL_TOO_SLOW);
    return NULL;
}

/* Leaves a full leaf to hz-record. */
static void leaf_hand_over(hz_leaf *leaf)
{
    atomic_store_explicit(&leaf->head.state, HZ_LEAF_FULL, memory_order_release);
    if (atomic_fetch_add(&pool->full, 1) % LEAVES_A_WAKE == 0) wake_on(&pool->full);
}

static hz_leaf *leaf_take(hz_thread_log *log)
{
    hz_leaf *leaf = take_free();
    if (leaf == NULL) leaf = wait_for_free();
    if (leaf == NULL) return NULL;
    leaf->head.image = image;
    leaf->head.thread = log->thread;
    leaf->head.number = log->leaf_count++;
    leaf->head.pid = getpid();
    leaf->head.tid = gettid();
    atomic_store_explicit(&leaf->head.used, 0, memory_order_relaxed);
    atomic_store_explicit(&leaf->head.state, HZ_LEAF_OWNED, memory_order_release);
    return leaf;
}

/* Before the first event of a second thread, the first one begins to stamp each of its own. */
static void log_join(hz_thread_log *log)
{
    hz_thread_log *first = NULL;
    if (!atomic_compare_exchange_strong(&first_log, &first, log) && first != log)
        atomic_store(&hz_log_is_alone, false);
}

/* The log of this thread begins: with its identity, and with a stamp that counts from 0. */
static void log_begin(hz_thread_log *log)
{
    log_join(log);
    log->shares = 0;
    log->leaf = NULL;
    log->stamp = 0;
    log->thread = atomic_fetch_add(&pool->thread_count, 1);
    log->leaf_count = 0;
    log->life = *hz_life;
    log->leaf = leaf_take(log);
    if (log->leaf != NULL)
        hz_log_put(log, log->leaf, HZ_LOG_SELF, (uint64_t)(uintptr_t)pthread_self(), 0);
}

static hz_leaf *next_leaf(hz_thread_log *log)
{
    if (atomic_load(&mode) == UNKNOWN) log_start();
    if (life_page != NULL && *life_page == 0) start_again();
    if (is_wanted()) wake_up();
    if (atomic_load(&mode) != AWAKE) return NULL;
    if (log->leaf != NULL && log->life == *hz_life) {
        leaf_hand_over(log->leaf);
        log->leaf = NULL;
    }
    if (atomic_load(&pool->ended) != HZ_POOL_OPEN) return NULL;
    if (log->life != *hz_life)
        log_begin(log);
    else
        log->leaf = leaf_take(log);
    return log->leaf;
}

hz_leaf *hz_log_leaf(hz_thread_log *log)
{
    if (atomic_load_explicit(&mode, memory_order_relaxed) == OFF) return NULL;
    const int saved = errno;
    hz_leaf *leaf = next_leaf(log);
    errno = saved;
    return leaf;
}

void hz_log_write_slow(hz_thread_log *log, hz_leaf *leaf, unsigned kind, uint64_t address,
                       uint64_t size)
{
    hz_log_write(leaf, kind, address, size, hz_log_pass(log, hz_log_clock));
}

void hz_log_lose(void)
{
    if (atomic_load(&mode) == AWAKE && *hz_life != 0) atomic_fetch_add(&pool->lost, 1);
}
