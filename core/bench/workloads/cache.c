/*
 * cache-scratch and cache-thrash: false sharing of cache lines between threads.
 *
 * A player allocates a small object, writes all of it many times and frees it, again and again. If
 * the allocator gave parts of one line to two threads, they slow each other down. In cache-scratch
 * (passive) every episode begins with an object that player 0 allocated for the player, beside
 * those for the others; an allocator that re-uses it where it was freed inherits the sharing.
 */
#include "mailbox.h"

enum { SIZE, ITERATIONS };
enum { WRITES = 100 }; /* of each object */

typedef struct cache_state {
    hz_mailbox *boxes;   /* cache-scratch: of all players; NULL in cache-thrash */
    uint32_t size;       /* of an object */
    uint64_t iterations; /* objects of an episode */
    uint64_t left;       /* of this episode */
    unsigned handed_out; /* player 0: how many have got their object of this episode */
} cache_state;

static void prepare_scratch(hz_run *run)
{
    run->shared = hz_mailboxes_new(run->threads, 2, true);
}

static void begin(hz_player *p)
{
    const int64_t *values = p->run->values;
    cache_state *state = p->state;
    state->boxes = p->run->shared;
    if (state->boxes != NULL) p->inbox = &state->boxes[p->index];
    state->size = (uint32_t)values[SIZE];
    state->iterations = (uint64_t)values[ITERATIONS];
    p->live_bytes = state->size; /* one object at a time; nothing is read inside a step */
}

/* One object. The writes are volatile: they are the point. */
static void play(hz_player *p, const cache_state *state)
{
    const hz_block object = hz_take_block(p, state->size);
    volatile unsigned char *bytes = object.at;
    for (uint32_t round = 0; round < WRITES; round++)
        for (uint32_t i = 0; i < state->size; i++) bytes[i] = (unsigned char)(bytes[i] + round);
    hz_give(p, object);
}

/* Player 0 allocates an object for each player; false when it has to wait. */
static bool hand_out(hz_player *p, cache_state *state)
{
    while (state->handed_out < p->run->threads) {
        hz_mailbox *box = &state->boxes[state->handed_out];
        if (hz_mailbox_is_full(box)) return false;
        (void)hz_mailbox_send(box, hz_take_block(p, state->size));
        state->handed_out++;
    }
    return true;
}

/* Begins an episode with the object that player 0 has allocated; false when it has not. */
static bool begin_episode(hz_player *p, cache_state *state)
{
    hz_block object;
    if (state->boxes != NULL) {
        if (p->index == 0 && !hand_out(p, state)) return false;
        if (!hz_mailbox_receive(p->inbox, &object)) return false;
        hz_give(p, object);
        state->handed_out = 0;
    }
    state->left = state->iterations;
    return true;
}

static size_t step(hz_player *p, size_t most)
{
    cache_state *state = p->state;
    if (state->left == 0 && !begin_episode(p, state)) return 0;
    const size_t count = most < state->left ? most : (size_t)state->left;
    for (size_t i = 0; i < count; i++) play(p, state);
    state->left -= count;
    return count;
}

static void end(hz_player *p)
{
    p->live_bytes -= ((cache_state *)p->state)->size;
}

/* What the two rows have in common. */
#define CACHE_WORKLOAD                                                                             \
    .source = "Berger et al., Hoard (ASPLOS 2000); mimalloc-bench", .batch = 16,                   \
    .params = {{"size", 8, 1, 65536, NULL, "bytes", "size of an object"},                          \
               {"iterations", 5000, 1, 1 << 20, NULL, "objects",                                   \
                "cache-scratch: objects between two hand-outs by the first thread"}},              \
    .settings = {{"published", "the objects of the published runs, four threads",                  \
                  "size=256 iterations=5000"}},                                                    \
    .state_bytes = sizeof(cache_state), .begin = begin, .step = step, .end = end

const hz_workload hz_workload_cache_scratch = {
    .name = "cache-scratch",
    .doc = "passive false sharing: objects that one thread allocated side by side are freed and "
           "re-used by the others, and written many times. An operation is one object",
    .prepare = prepare_scratch,
    CACHE_WORKLOAD,
};

const hz_workload hz_workload_cache_thrash = {
    .name = "cache-thrash",
    .doc = "active false sharing: every thread allocates, writes many times and frees small "
           "objects. An operation is one object",
    CACHE_WORKLOAD,
};
