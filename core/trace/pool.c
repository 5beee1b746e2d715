/*
 * hz-record's side of the pool: see pool.h.
 */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arguments.h"

enum { WAIT_NS = 10 * 1000000 };

/* Whether the processor's counter runs evenly, and the kernel trusts it on all CPUs. */
static uint32_t clock_to_use(void)
{
#if defined(__x86_64__)
    char name[16] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    if (file == NULL) return HZ_CLOCK_RAW;
    const bool is_counter = fgets(name, sizeof name, file) != NULL && strcmp(name, "tsc\n") == 0;
    (void)fclose(file);
    return is_counter ? HZ_CLOCK_COUNTER : HZ_CLOCK_RAW;
#elif defined(__aarch64__)
    return HZ_CLOCK_COUNTER;
#else
    return HZ_CLOCK_RAW;
#endif
}

hz_pool *hz_pool_make(char path[HZ_BELL_PATH_BYTES], uint64_t touch_bytes)
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
    pool->touch_bytes = touch_bytes;
    for (size_t i = 0; i < HZ_LEAF_COUNT / HZ_POOL_BITS; i++)
        atomic_store(&pool->free_leaves[i], ULLONG_MAX);
    (void)snprintf(path, HZ_BELL_PATH_BYTES, "/proc/%d/fd/%d", (int)getpid(), fd);
    return pool;
}

void hz_pool_each(hz_pool *pool, void (*visit)(void *context, size_t index, hz_leaf *leaf),
                  void *context)
{
    for (size_t i = 0; i < HZ_LEAF_COUNT / HZ_POOL_BITS; i++) {
        unsigned long long taken = ~atomic_load(&pool->free_leaves[i]);
        for (; taken != 0; taken &= taken - 1) {
            const size_t index = i * HZ_POOL_BITS + (size_t)__builtin_ctzll(taken);
            visit(context, index, hz_pool_leaf(pool, index));
        }
    }
}

void hz_pool_free(hz_pool *pool, size_t index)
{
    atomic_store(&hz_pool_leaf(pool, index)->head.state, HZ_LEAF_FREE);
    atomic_fetch_or(&pool->free_leaves[index / HZ_POOL_BITS], 1ull << index % HZ_POOL_BITS);
    atomic_fetch_add(&pool->freed, 1);
    if (atomic_exchange(&pool->is_scarce, 0) != 0)
        (void)syscall(SYS_futex, &pool->freed, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void hz_pool_wait(hz_pool *pool, unsigned seen)
{
    const struct timespec longest = {.tv_nsec = WAIT_NS};
    (void)syscall(SYS_futex, &pool->full, FUTEX_WAIT, seen, &longest, NULL, 0);
}

void hz_pool_end(hz_pool *pool, unsigned why)
{
    unsigned open = HZ_POOL_OPEN;
    (void)atomic_compare_exchange_strong(&pool->ended, &open, why);
    (void)syscall(SYS_futex, &pool->freed, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
