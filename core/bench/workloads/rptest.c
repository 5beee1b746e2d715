/*
 * rptest: an array of blocks fills up, is replaced part by part, and is cleared; now and then a
 * batch of blocks is made for the next thread, which frees it.
 */
#include <math.h>

#include "mailbox.h"

enum { MIN_SIZE, MAX_SIZE }; /* rows of the parameters */
enum {
    OPS = 100,   /* blocks that a loop frees and allocates */
    LOOPS = 500, /* loops before the array is cleared */
    CROSS = 2,   /* every so many loops, a loop's blocks are made for the next thread */
};
enum { TABLE_BITS = 10, TABLE_LENGTH = 1 << TABLE_BITS, STRIDE_MAX = 16 };

typedef struct rptest_state {
    hz_mailbox *next;      /* the next player's */
    const uint32_t *table; /* sizes, evenly spaced in probability */
    bool crossing;         /* whether this loop makes blocks for the next thread */
    uint32_t op;           /* of this loop */
    uint32_t loop;         /* of this filling */
    uint32_t at;           /* next block of the array */
} rptest_state;

typedef struct shared {
    hz_mailbox *boxes;            /* one for each player */
    uint32_t table[TABLE_LENGTH]; /* sizes, evenly spaced in probability */
} shared;

static void prepare(hz_run *run)
{
    const int64_t *values = run->values;
    shared *all = hz_harness_alloc(sizeof *all);
    all->boxes = hz_mailboxes_new(run->threads, 2 * (size_t)OPS, true);
    for (int i = 0; i < TABLE_LENGTH; i++) {
        const double where = 1 - sqrt(1 - (i + 0.5) / TABLE_LENGTH); /* falling linearly */
        all->table[i] = (uint32_t)values[MIN_SIZE] +
                        (uint32_t)(where * (double)(values[MAX_SIZE] - values[MIN_SIZE]));
    }
    run->shared = all;
}

static void begin(hz_player *p)
{
    shared *all = p->run->shared;
    p->inbox = &all->boxes[p->index];
    *(rptest_state *)p->state = (rptest_state){
        .next = &all->boxes[(p->index + 1) % p->run->threads],
        .table = all->table,
    };
}

static hz_block new_block(hz_player *p, const rptest_state *state)
{
    return hz_take_block(p, state->table[hz_random(&p->rng) >> (64 - TABLE_BITS)]);
}

static void free_own(hz_player *p, hz_block *slot)
{
    if (slot->at == NULL) return;
    hz_give(p, *slot);
    slot->at = NULL;
}

/* Replaces the next block of the array, at a random distance from the last. */
static void replace(hz_player *p, rptest_state *state)
{
    state->at += 1 + hz_scale(hz_low(hz_random(&p->rng)), STRIDE_MAX);
    while (state->at >= p->slot_count) state->at -= p->slot_count;
    free_own(p, &p->slots[state->at]);
    p->slots[state->at] = new_block(p, state);
}

/* After a loop; after the last one the array is cleared, and fills again. */
static void next_loop(hz_player *p, rptest_state *state)
{
    state->op = 0;
    state->loop++;
    state->crossing = p->run->threads > 1 && state->loop % CROSS == 0;
    if (state->loop < LOOPS) return;
    state->loop = 0;
    for (uint32_t i = 0; i < p->slot_count; i++) free_own(p, &p->slots[i]);
}

/* One operation; false when the player has to wait. */
static bool play(hz_player *p, rptest_state *state)
{
    bool sent = true;
    replace(p, state);
    if (state->crossing) sent = hz_post(p, state->next, new_block(p, state));
    if (++state->op == OPS) next_loop(p, state);
    return sent;
}

HZ_PLAY_AND_POST(step, play)

const hz_workload hz_workload_rptest = {
    .name = "rptest",
    .doc = "an array of blocks of mixed sizes grows, is replaced piecemeal and is cleared; every "
           "other loop also makes a batch for the next thread to free. An operation is one "
           "replacement",
    .source = "the rpmalloc benchmark, as in mimalloc-bench (16 threads, 16..16000)",
    .params =
        {
            HZ_SIZE_PARAMS(16, 16000),
            {"blocks", 1000, 1, 1 << 20, NULL, "blocks", "length of a thread's array"},
        },
    .state_bytes = sizeof(rptest_state),
    .slots = "blocks",
    .prepare = prepare,
    .begin = begin,
    .step = step,
};
