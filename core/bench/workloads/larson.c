/*
 * larson: a server. Each player owns an array of live blocks and replaces a random one by one of
 * random size; after a round a newly born thread goes on with the array, so that it frees blocks
 * which another thread allocated.
 */
#include "blocks.h"

enum { MIN_SIZE, MAX_SIZE, SLOTS, ROUNDS };

typedef struct larson_state {
    uint64_t life;    /* replacements before a new thread takes over */
    uint64_t left;    /* of the present thread's life */
    hz_block slots[]; /* those of the player */
} larson_state;

static void begin(hz_player *p)
{
    larson_state *state = p->state;
    state->left = state->life = p->slot_count * (uint64_t)p->run->values[ROUNDS];
    for (size_t i = 0; i < p->slot_count; i++)
        p->slots[i] = hz_take_block(p, hz_sizes_draw(p->sizes, hz_high(hz_random(&p->rng))));
}

static size_t step(hz_player *p, size_t most)
{
    larson_state *state = p->state;
    const size_t count = most < state->left ? most : (size_t)state->left;
    for (size_t left = count; left > 0; left--) {
        const uint64_t draw = hz_random(&p->rng);
        hz_block *victim = &state->slots[hz_scale(hz_low(draw), p->slot_count)];
        hz_give(p, *victim);
        *victim = hz_take_block(p, hz_sizes_draw(p->sizes, hz_high(draw)));
    }
    state->left -= count;
    if (state->left == 0) {
        state->left = state->life;
        p->hand_over = true;
    }
    return count;
}

const hz_workload hz_workload_larson = {
    .name = "larson",
    .doc = "server simulation: free a random block of an array, put one of random size in its "
           "place; after a round a new thread goes on with the array. An operation is one such "
           "replacement",
    .source = "Larson and Krishnan, Memory Allocation for Long-Running Server Applications (ISMM "
              "1998); mimalloc-bench",
    .params =
        {
            HZ_SIZE_PARAMS(8, 1024),
            {"slots", 10000, 1, 1 << 24, NULL, "blocks", "live blocks of a thread"},
            {"rounds", 1, 1, 1 << 20, NULL, "rounds",
             "life of a thread: rounds of as many replacements as it has slots"},
        },
    .settings =
        {
            {"mimalloc-bench", "the run of mimalloc-bench",
             "min_size=8 max_size=1000 slots=5000 rounds=100"},
            {"medium", "the medium sizes of the hakozuna tables",
             "min_size=4096 max_size=32768 slots=1000"},
            {"mid", "the Mid-pool sizes of the hakmem tables", "min_size=2048 max_size=32768"},
        },
    .state_bytes = sizeof(larson_state),
    .slots = "slots",
    .begin = begin,
    .step = step,
};
