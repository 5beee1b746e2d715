/*
 * burst-idle: bursts of allocation, then nothing. What counts is how much memory stays resident
 * while the program idles with its threads alive.
 *
 * A burst has two halves: all threads allocate, then all free. They wait for each other in between.
 * Else one would free what another allocates in some processes, in step for seconds, and in other
 * processes not: how much memory passes through the allocator would be chance.
 */
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "blocks.h"
#include "procfs.h"

enum { MIN_SIZE, MAX_SIZE, BLOCKS, IDLE };

/* What all players share. */
typedef struct shared {
    _Atomic uint64_t halves;   /* halves of bursts that are done, by all players together */
    pthread_barrier_t meeting; /* where they meet in and after the last burst */
    int64_t rss_idle_kb;       /* resident at the end of the idling */
} shared;

typedef struct burst_state {
    size_t block_count; /* length of `blocks` */
    size_t live_count;  /* of them that are live */
    uint64_t halves;    /* halves of bursts that this player has done */
    bool freeing;       /* whether the burst is over and its blocks are being freed */
    hz_block *blocks;   /* the burst */
} burst_state;

static void prepare(hz_run *run)
{
    shared *all = hz_harness_alloc(sizeof *all);
    (void)pthread_barrier_init(&all->meeting, NULL, run->threads);
    run->shared = all;
}

static void begin(hz_player *p)
{
    burst_state *state = p->state;
    state->block_count = (size_t)p->run->values[BLOCKS] / p->run->threads + 1;
    state->blocks = hz_harness_alloc(state->block_count * sizeof(hz_block));
}

static bool is_between_halves(const burst_state *state)
{
    return state->live_count == 0 || state->live_count == state->block_count;
}

/* One malloc or one free: up to the top, then down to nothing. */
static void play(hz_player *p, burst_state *state)
{
    if (state->freeing) {
        hz_give(p, state->blocks[--state->live_count]);
    } else {
        const uint32_t bits = hz_low(hz_random(&p->rng));
        state->blocks[state->live_count++] = hz_take_block(p, hz_sizes_draw(p->sizes, bits));
    }
    if (is_between_halves(state)) state->freeing = state->live_count != 0;
}

static size_t step(hz_player *p, size_t most)
{
    burst_state *state = p->state;
    shared *all = p->run->shared;
    size_t done = 0;
    if (is_between_halves(state) &&
        atomic_load_explicit(&all->halves, memory_order_acquire) < state->halves * p->run->threads)
        return 0;
    do {
        play(p, state);
        done++;
    } while (done < most && !is_between_halves(state));
    if (is_between_halves(state)) {
        state->halves++;
        atomic_fetch_add_explicit(&all->halves, 1, memory_order_release);
    }
    return done;
}

static void idle(const hz_run *run)
{
    shared *all = run->shared;
    const int64_t seconds = run->options->rests != 0 ? 0 : run->values[IDLE];
    if (seconds > 0) (void)nanosleep(&(struct timespec){.tv_sec = seconds}, NULL);
    all->rss_idle_kb = hz_proc_rss_kb(getpid());
    atomic_store(&all->halves, 0); /* for the next round of work and rest */
}

/* Fills a last burst, frees it, and idles with all threads alive. */
static void end(hz_player *p)
{
    burst_state *state = p->state;
    shared *all = p->run->shared;
    state->freeing = false;
    while (state->live_count < state->block_count) play(p, state);
    (void)pthread_barrier_wait(&all->meeting);
    state->freeing = true;
    while (state->live_count > 0) play(p, state);
    (void)pthread_barrier_wait(&all->meeting);
    if (p->index == 0) idle(p->run);
    (void)pthread_barrier_wait(&all->meeting);
}

static void report(const hz_run *run, hz_json *json)
{
    const shared *all = run->shared;
    hz_json_int(json, "rss_idle_kb", all->rss_idle_kb);
}

const hz_workload hz_workload_burst_idle = {
    .name = "burst-idle",
    .doc = "bursts in which all threads allocate together, then free together; then the program "
           "idles, and the memory that stays resident is reported. An operation is one malloc or "
           "one free",
    .source = "the burst and idle test of the hakmem tables (200000 blocks)",
    .is_unsteady = true,
    .params =
        {
            HZ_SIZE_PARAMS(16, 1024),
            {"blocks", 200000, 1, 1 << 24, NULL, "blocks", "blocks of a burst, over all threads"},
            {"idle", 10, 0, 3600, NULL, "s", "how long it idles after the last burst"},
        },
    .state_bytes = sizeof(burst_state),
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .end = end,
    .report = report,
};
