/*
 * threads: short-lived threads that allocate, free most of it, leave some blocks behind and end.
 *
 * A player starts one such thread at a time and waits for it; the blocks that are left behind stay
 * live for a few generations and are then freed by the player.
 */
#include "blocks.h"

enum { MIN_SIZE, MAX_SIZE, BLOCKS, LEFT };
enum { GENERATIONS = 8, STACK_BYTES = 64 * 1024 };

typedef struct threads_state {
    uint32_t block_count; /* blocks that a thread allocates */
    uint32_t left_count;  /* blocks that it leaves behind */
    uint32_t generation;  /* index of the oldest in `left` */
    pthread_attr_t small; /* attributes of a thread with a small stack */
    hz_block *blocks;     /* of the present thread */
    hz_block *left;       /* what the last GENERATIONS threads have left behind */
} threads_state;

static void begin(hz_player *p)
{
    const int64_t *values = p->run->values;
    threads_state *state = p->state;
    state->block_count = (uint32_t)values[BLOCKS];
    state->left_count = (uint32_t)(values[BLOCKS] * values[LEFT] / 100);
    state->blocks = hz_harness_alloc(state->block_count * sizeof(hz_block));
    state->left = hz_harness_alloc((GENERATIONS * state->left_count + 1) * sizeof(hz_block));
    (void)pthread_attr_init(&state->small);
    (void)pthread_attr_setstacksize(&state->small, STACK_BYTES);
}

/* The short life. The player waits meanwhile, so this thread may use all that is the player's. */
static void *live_thread(void *argument)
{
    hz_player *p = argument;
    threads_state *state = p->state;
    for (uint32_t i = 0; i < state->block_count; i++) {
        const uint32_t bits = hz_low(hz_random(&p->rng));
        state->blocks[i] = hz_take_block(p, hz_sizes_draw(p->sizes, bits));
    }
    for (uint32_t i = state->left_count; i < state->block_count; i++) hz_give(p, state->blocks[i]);
    return NULL;
}

/* Puts what was left behind in the place of the oldest, which is freed. */
static void inherit(hz_player *p, threads_state *state)
{
    hz_block *oldest = &state->left[state->generation * state->left_count];
    for (uint32_t i = 0; i < state->left_count; i++) {
        if (oldest[i].at != NULL) hz_give(p, oldest[i]);
        oldest[i] = state->blocks[i];
    }
    state->generation = (state->generation + 1) % GENERATIONS;
}

static void play(hz_player *p, threads_state *state)
{
    pthread_t thread;
    const int error = pthread_create(&thread, &state->small, live_thread, p);
    if (error != 0) hz_fail("cannot start a thread: %s", strerror(error));
    (void)pthread_join(thread, NULL);
    inherit(p, state);
}

HZ_PLAY_EACH(play)

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
    .batch = 4,
    .params =
        {
            HZ_SIZE_PARAMS(8, 1024),
            {"blocks", 100, 1, 1 << 20, NULL, "blocks", "blocks that a thread allocates"},
            {"left", 10, 0, 100, NULL, "%", "share of them that it leaves behind"},
        },
    .settings = {{"flood", "threads that hardly do anything, born as fast as they can be",
                  "blocks=1 left=100"}},
    .state_bytes = sizeof(threads_state),
    .begin = begin,
    .step = step,
    .end = end,
};
