/*
 * mstress: threads build up blocks of heavy-tailed sizes, keep some for longer, exchange some
 * through a shared array, and free everything at the end of each iteration.
 *
 * A block begins with its size and its owner, since the thread that takes it out of the shared
 * array has nothing else to know them from.
 */
#include "blocks.h"

enum { SCALE };
enum { WORD = 8, KEEP_SHARE = 4, LENGTH_PER_SCALE = 100, TRANSFERS = 1000 };

/* The start of every block. */
typedef struct head {
    uint32_t size;  /* as requested */
    uint32_t owner; /* index of the player that allocated it */
} head;

/* What is in the shared array: pointers to blocks, or NULL. */
typedef _Atomic(head *) transfer;

typedef struct mstress_state {
    transfer *transfers;     /* the shared array, of TRANSFERS */
    uint64_t length;         /* allocations of an iteration */
    uint64_t left;           /* of this iteration */
    size_t live_count;       /* short-lived blocks: the first of `blocks` */
    size_t kept_count;       /* long-lived blocks: the last of `blocks` */
    head *blocks[];          /* `length` of them at most */
} mstress_state;

static void prepare(hz_run *run)
{
    run->shared = hz_harness_alloc(TRANSFERS * sizeof(transfer));
}

static void begin(hz_player *p)
{
    const int64_t *values = p->run->values;
    const size_t length = (size_t)values[SCALE] * LENGTH_PER_SCALE;
    mstress_state *state = hz_harness_alloc(sizeof *state + length * sizeof(head *));
    state->transfers = p->run->shared;
    state->length = state->left = length;
    p->state = state;
}

/* Whether a chance of `percent` comes true. */
static bool chance(hz_player *p, uint32_t percent)
{
    return hz_scale(hz_low(hz_random(&p->rng)), 100) < percent;
}

/* 1 to 16 words; one in a hundred times that much, one in ten thousand a thousand times. */
static uint32_t draw_size(hz_player *p)
{
    uint32_t words = 1 + hz_scale(hz_low(hz_random(&p->rng)), 16);
    if (HZ_UNLIKELY(chance(p, 1))) words *= chance(p, 1) ? 1000 : 100;
    return words * WORD;
}

static head *new_block(hz_player *p)
{
    const uint32_t size = draw_size(p);
    head *block = hz_take(p, size);
    *block = (head){size, p->index};
    return block;
}

static void free_block(hz_player *p, head *block)
{
    if (block != NULL) hz_give(p, (hz_block){block, block->size});
}

/* Takes block `at` out of the short-lived ones, moving the last one there. */
static head *take_out(mstress_state *state, size_t at)
{
    head *block = state->blocks[at];
    state->blocks[at] = state->blocks[--state->live_count];
    return block;
}

/* Exchanges a random short-lived block with whatever is at a random place of the shared array. */
static void exchange(hz_player *p, mstress_state *state)
{
    const uint64_t draw = hz_random(&p->rng);
    transfer *place = &state->transfers[hz_scale(hz_high(draw), TRANSFERS)];
    if (state->live_count == 0) return;
    head *mine = take_out(state, hz_scale(hz_low(draw), state->live_count));
    head *theirs = atomic_exchange_explicit(place, mine, memory_order_acq_rel);
    if (theirs != NULL) state->blocks[state->live_count++] = theirs;
}

/* Frees what is left of the iteration. */
static void clear(hz_player *p, mstress_state *state)
{
    while (state->live_count > 0) free_block(p, state->blocks[--state->live_count]);
    while (state->kept_count > 0) free_block(p, state->blocks[state->length - state->kept_count--]);
}

/* One allocation, and what goes with it. */
static void play(hz_player *p, mstress_state *state)
{
    head *block = new_block(p);
    const uint32_t victim =
        hz_high(hz_random(&p->rng)); /* drawn in any case: see glossary, request */
    if (chance(p, KEEP_SHARE))
        state->blocks[state->length - ++state->kept_count] = block;
    else
        state->blocks[state->live_count++] = block;
    if (chance(p, 66) && state->live_count > 0)
        free_block(p, take_out(state, hz_scale(victim, state->live_count)));
    if (chance(p, 25)) exchange(p, state);
    if (--state->left > 0) return;
    clear(p, state);
    state->left = state->length;
}

HZ_PLAY_EACH(play)

/* All players share the array: each player frees its part of it. */
static void end(hz_player *p)
{
    mstress_state *state = p->state;
    clear(p, state);
    for (uint32_t i = p->index; i < TRANSFERS; i += p->run->threads)
        free_block(p, atomic_exchange(&state->transfers[i], NULL));
}

const hz_workload hz_workload_mstress = {
    .name = "mstress",
    .doc = "threads allocate blocks of heavy-tailed sizes, keep some, exchange some through a "
           "shared array and free the rest, iteration after iteration. An operation is one malloc "
           "with the frees and exchanges that go with it",
    .source = "the stress test of mimalloc, as in mimalloc-bench",
    .params =
        {
            {"scale", 80, 1, 10000, NULL, "%",
             "length of an iteration: as many allocations as a hundred times this"},
        },
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .end = end,
};
