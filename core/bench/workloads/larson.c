/*
 * larson: a server. Each player owns an array of live blocks and replaces a random one by one of
 * random size; after a round a newly born thread goes on with the array, so that it frees blocks
 * which another thread allocated.
 */
#include "blocks.h"

enum { MIN_SIZE, MAX_SIZE, SLOTS, ROUNDS };

static const hz_bench_param params[] = {
    {"min_size", 8, 1, 1 << 26, NULL, "bytes", "smallest block"},
    {"max_size", 1024, 1, 1 << 26, NULL, "bytes", "largest block"},
    {"slots", 10000, 1, 1 << 24, NULL, "blocks", "live blocks of a thread"},
    {"rounds", 1, 1, 1 << 20, NULL, "rounds",
     "life of a thread: rounds of as many replacements as it has slots"},
};

static const hz_bench_setting settings[] = {
    {"mimalloc-bench", "the run of mimalloc-bench",
     "min_size=8 max_size=1000 slots=5000 rounds=100"},
    {"medium", "the medium sizes of the hakozuna tables",
     "min_size=4096 max_size=32768 slots=1000"},
    {"mid", "the Mid-pool sizes of the hakmem tables", "min_size=2048 max_size=32768"},
};

typedef struct larson_state {
    hz_sizes sizes;      /* what is asked for */
    uint32_t slot_count; /* length of `slots` */
    uint64_t life;       /* replacements before a new thread takes over */
    uint64_t left;       /* of the present thread's life */
    hz_block slots[];    /* the live blocks */
} larson_state;

static void prepare(hz_run *run)
{
    (void)hz_sizes_between(run->values[MIN_SIZE], run->values[MAX_SIZE]);
}

static void begin(hz_player *p)
{
    const int64_t *values = p->run->values;
    const size_t slots = (size_t)values[SLOTS];
    larson_state *state = hz_harness_alloc(sizeof *state + slots * sizeof(hz_block));
    state->sizes = hz_sizes_between(values[MIN_SIZE], values[MAX_SIZE]);
    state->slot_count = (uint32_t)slots;
    state->left = state->life = slots * (uint64_t)values[ROUNDS];
    for (size_t i = 0; i < slots; i++) {
        const uint64_t draw = hz_random(&p->rng);
        state->slots[i] = hz_take_block(p, hz_sizes_draw(state->sizes, hz_high(draw)));
    }
    p->state = state;
}

static size_t step(hz_player *p, size_t most)
{
    larson_state *state = p->state;
    const size_t count = most < state->left ? most : (size_t)state->left;
    for (size_t i = 0; i < count; i++) {
        const uint64_t draw = hz_random(&p->rng);
        hz_block *victim = &state->slots[hz_scale(hz_low(draw), state->slot_count)];
        hz_give(p, *victim);
        *victim = hz_take_block(p, hz_sizes_draw(state->sizes, hz_high(draw)));
    }
    state->left -= count;
    if (state->left == 0) {
        state->left = state->life;
        p->hand_over = true;
    }
    return count;
}

static void end(hz_player *p)
{
    larson_state *state = p->state;
    hz_give_rest(p, state->slots, state->slot_count);
}

const hz_workload hz_workload_larson = {
    .name = "larson",
    .doc = "server simulation: free a random block of an array, put one of random size in its "
           "place; after a round a new thread goes on with the array. An operation is one such "
           "replacement",
    .source = "Larson and Krishnan, Memory Allocation for Long-Running Server Applications (ISMM "
              "1998); mimalloc-bench",
    .min_threads = 1,
    .steady = true,
    .batch = 64,
    .params = params,
    .param_count = HZ_LENGTH(params),
    .settings = settings,
    .setting_count = HZ_LENGTH(settings),
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .end = end,
};
