/*
 * threads: short-lived threads that allocate, free most of it, leave some blocks behind and end.
 *
 * A player starts one such thread at a time and waits for it; the blocks that are left behind stay
 * live for a few generations and are then freed by the player.
 */
#include "blocks.h"

enum { MIN_SIZE, MAX_SIZE, BLOCKS, LEFT };
enum { GENERATIONS = 8, STACK_BYTES = 64 * 1024 };

static const hz_bench_param params[] = {
    {"min_size", 8, 1, 1 << 26, NULL, "bytes", "smallest block"},
    {"max_size", 1024, 1, 1 << 26, NULL, "bytes", "largest block"},
    {"blocks", 100, 1, 1 << 20, NULL, "blocks", "blocks that a thread allocates"},
    {"left", 10, 0, 100, NULL, "%", "share of them that it leaves behind"},
};

static const hz_bench_setting settings[] = {
    {"flood", "threads that hardly do anything, born as fast as they can be", "blocks=1 left=100"},
};

typedef struct threads_state {
    hz_sizes sizes;       /* what is asked for */
    uint32_t block_count; /* blocks that a thread allocates */
    uint32_t left_count;  /* blocks that it leaves behind */
    uint32_t generation;  /* index of the oldest in `left` */
    pthread_attr_t small; /* attributes of a thread with a small stack */
    hz_block *blocks;     /* of the present thread */
    hz_block left[];      /* what the last GENERATIONS threads have left behind */
} threads_state;

static void prepare(hz_run *run)
{
    (void)hz_sizes_between(run->values[MIN_SIZE], run->values[MAX_SIZE]);
}

static void begin(hz_player *p)
{
    const int64_t *values = p->run->values;
    const size_t blocks = (size_t)values[BLOCKS];
    const size_t left = blocks * (size_t)values[LEFT] / 100;
    threads_state *state = hz_harness_alloc(sizeof *state + GENERATIONS * left * sizeof(hz_block));
    state->sizes = hz_sizes_between(values[MIN_SIZE], values[MAX_SIZE]);
    state->block_count = (uint32_t)blocks;
    state->left_count = (uint32_t)left;
    state->blocks = hz_harness_alloc(blocks * sizeof(hz_block));
    (void)pthread_attr_init(&state->small);
    (void)pthread_attr_setstacksize(&state->small, STACK_BYTES);
    p->state = state;
}

/* The short life. The player waits meanwhile, so this thread may use all that is the player's. */
static void *live_thread(void *argument)
{
    hz_player *p = argument;
    threads_state *state = p->state;
    for (uint32_t i = 0; i < state->block_count; i++) {
        const uint32_t bits = hz_low(hz_random(&p->rng));
        state->blocks[i] = hz_take_block(p, hz_sizes_draw(state->sizes, bits));
    }
    for (uint32_t i = state->left_count; i < state->block_count; i++) hz_give(p, state->blocks[i]);
    p->local_frees += state->block_count - state->left_count;
    return NULL;
}

/* Puts what was left behind in the place of the oldest, which is freed. */
static void inherit(hz_player *p, threads_state *state)
{
    hz_block *oldest = &state->left[state->generation * state->left_count];
    for (uint32_t i = 0; i < state->left_count; i++) {
        if (oldest[i].at != NULL) {
            hz_give(p, oldest[i]);
            p->remote_frees++;
        }
        oldest[i] = state->blocks[i];
    }
    state->generation = (state->generation + 1) % GENERATIONS;
}

static size_t step(hz_player *p, size_t most)
{
    threads_state *state = p->state;
    for (size_t i = 0; i < most; i++) {
        pthread_t thread;
        const int error = pthread_create(&thread, &state->small, live_thread, p);
        if (error != 0) hz_fail("cannot start a thread: %s", strerror(error));
        (void)pthread_join(thread, NULL);
        p->births++;
        inherit(p, state);
    }
    return most;
}

static void end(hz_player *p)
{
    threads_state *state = p->state;
    hz_give_rest(p, state->left, GENERATIONS * state->left_count);
}

const hz_workload hz_workload_threads = {
    .name = "threads",
    .doc = "short-lived threads allocate, free most of it, leave some blocks to others and end. An "
           "operation is the life of one thread",
    .source = "the thread churn of the hakmem tables",
    .min_threads = 1,
    .steady = true,
    .batch = 4,
    .params = params,
    .param_count = HZ_LENGTH(params),
    .settings = settings,
    .setting_count = HZ_LENGTH(settings),
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .end = end,
};
