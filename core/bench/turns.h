/*
 * The turn protocol: how a conductor (hz-turns, or hz-bench's own main thread) gives threads turns
 * through a page of shared memory.
 *
 *   park   threads wait on the futex word `turn`; one that has arrived is counted in `parked`
 *   run    threads work; each publishes its completed operations after every step
 *   quit   threads finish
 *
 * With `is_whole`, threads obey `park` only where a round of the workload ends.
 *
 * The conductor writes `turn`, `worked_ns` and `is_whole`; the program writes the rest.
 * All threads are parked when `parked` equals `nthreads`; a thread that is just waking when the
 * word turns back to park counts itself out and in again without working.
 */
#ifndef HZ_BENCH_TURNS_H
#define HZ_BENCH_TURNS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HZ_TURNS_MAGIC "HZTURNS1"
#define HZ_TURNS_MAX_THREADS 4096

enum { HZ_TURN_PARK = 0, HZ_TURN_RUN = 1, HZ_TURN_QUIT = 2 };

/* FUTEX_WAIT and FUTEX_WAKE: musl's compiler does not find the kernel's own headers. */
enum { HZ_FUTEX_WAIT = 0, HZ_FUTEX_WAKE = 1 };

/* One thread's line: written by the thread alone. */
typedef struct hz_turn_slot {
    _Atomic uint64_t ops;         /* operations completed since the start */
    _Atomic int64_t live_bytes;   /* bytes requested less bytes freed by this thread; the sum over
                                     threads counts */
    _Atomic uint64_t involuntary; /* involuntary context switches, as of the last parking */
    _Atomic uint32_t parked;      /* 1 while the thread waits for a turn */
    uint8_t unused[64 - 3 * sizeof(uint64_t) - sizeof(uint32_t)];
} hz_turn_slot;

/* The whole page. */
typedef struct hz_turn_page {
    char magic[8];              /* HZ_TURNS_MAGIC, by the conductor */
    _Atomic uint32_t nthreads;  /* threads that obey; 0 until the program has read the page */
    _Atomic uint32_t turn;      /* futex: HZ_TURN_PARK, _RUN or _QUIT */
    _Atomic uint32_t parked;    /* futex: how many threads are parked */
    uint32_t is_whole;          /* 1: a turn ends with a round; before the program starts */
    _Atomic uint64_t worked_ns; /* length of all turns so far, by the conductor */
    _Atomic int64_t own_kb;     /* resident memory that is the program's own, not its allocator's */
    _Atomic uint32_t halted;    /* threads that wait for a turn; others that are parked wait for
                                   them, or are about to see that they need not */
    uint8_t unused[64 - 3 * sizeof(uint64_t) - 5 * sizeof(uint32_t)];
    hz_turn_slot slots[HZ_TURNS_MAX_THREADS]; /* the first `nthreads` are in use */
} hz_turn_page;

_Static_assert(sizeof(hz_turn_slot) == 64, "a slot is one cache line");
_Static_assert(offsetof(hz_turn_page, slots) == 64, "the header is one cache line");

/* Sleeps while *word == seen, at most `timeout_ns` (negative: for ever). May return early. */
static inline void hz_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    const struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                                     .tv_nsec = timeout_ns % 1000000000};
    (void)syscall(SYS_futex, word, HZ_FUTEX_WAIT, seen, timeout_ns < 0 ? NULL : &timeout, NULL, 0);
}

/* Wakes at most `count` sleepers of `word`. */
static inline void hz_futex_wake_some(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, HZ_FUTEX_WAKE, count, NULL, NULL, 0);
}

/* Wakes every sleeper of `word`. */
static inline void hz_futex_wake(_Atomic uint32_t *word)
{
    hz_futex_wake_some(word, INT32_MAX);
}

/* The monotonic clock, in ns. */
static inline int64_t hz_clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/*
 * Gives the word `turn` a new value. At the beginning of a turn only one thread is woken, and each
 * that goes to work wakes two more: a thread that wakes many at once is driven off
 * its CPU by the first of them, and a conductor would come back late. To park them it wakes none.
 */
static inline void hz_turn_give(hz_turn_page *page, uint32_t turn)
{
    atomic_store(&page->turn, turn);
    if (turn == HZ_TURN_RUN) hz_futex_wake_some(&page->turn, 1);
    if (turn == HZ_TURN_QUIT) hz_futex_wake(&page->turn);
}

/* Whether every thread has started and waits for a turn, or, with `is_whole`, for one that does. */
static inline int hz_turn_all_parked(hz_turn_page *page)
{
    const uint32_t nthreads = atomic_load(&page->nthreads);
    if (nthreads == 0 || atomic_load(&page->parked) != nthreads) return 0;
    return page->is_whole == 0 || atomic_load(&page->halted) != 0;
}

/* Operations that all threads together have published. */
static inline uint64_t hz_turn_ops(hz_turn_page *page)
{
    const uint32_t nthreads = atomic_load_explicit(&page->nthreads, memory_order_relaxed);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < nthreads; i++)
        sum += atomic_load_explicit(&page->slots[i].ops, memory_order_relaxed);
    return sum;
}

/* Bytes that are requested and not yet freed, over all threads. */
static inline int64_t hz_turn_live_bytes(hz_turn_page *page)
{
    const uint32_t nthreads = atomic_load_explicit(&page->nthreads, memory_order_relaxed);
    int64_t sum = 0;
    for (uint32_t i = 0; i < nthreads; i++)
        sum += atomic_load_explicit(&page->slots[i].live_bytes, memory_order_relaxed);
    return sum;
}

#endif
