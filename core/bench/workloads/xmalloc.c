/*
 * xmalloc: batches of blocks go round in a pool. Half of the players fill batches with new blocks,
 * the other half frees them; full and empty batches are exchanged through two shared queues.
 */
#include "mailbox.h"

enum { BATCH };
enum { POOL = 4 }; /* batches for each pair of players */

/* Those that are drawn: powers of two and the values half-way between. */
static const uint16_t usual_sizes[] = {8,   12,  16,  24,  32,  48,   64,   96,  128,
                                       192, 256, 384, 512, 768, 1024, 1536, 2048};

/* What all players share. The messages are batches: an array, and how many blocks are in it. */
typedef struct pool {
    hz_mailbox *full;  /* one queue */
    hz_mailbox *empty; /* one queue */
} pool;

typedef struct xmalloc_state {
    pool *pool;          /* the shared queues */
    bool producer;       /* which half it belongs to */
    uint32_t batch_room; /* most blocks of a batch */
    hz_block *batch;     /* the one in hand, or NULL */
    uint32_t count;      /* consumer: blocks in it */
    uint32_t at;         /* next block of it */
} xmalloc_state;

static void prepare(hz_run *run)
{
    const size_t batches = (size_t)POOL * hz_producer_count(run);
    pool *shared = hz_harness_alloc(sizeof *shared);
    shared->full = hz_mailboxes_new(1, batches, false);
    shared->empty = hz_mailboxes_new(1, batches, false);
    for (size_t i = 0; i < batches; i++) {
        hz_block *batch = hz_harness_alloc((size_t)run->values[BATCH] * sizeof *batch);
        (void)hz_mailbox_send(shared->empty, (hz_block){batch, 0});
    }
    run->shared = shared;
}

static void begin(hz_player *p)
{
    *(xmalloc_state *)p->state = (xmalloc_state){
        .pool = p->run->shared,
        .producer = p->index < hz_producer_count(p->run),
        .batch_room = (uint32_t)p->run->values[BATCH],
    };
}

/* Has a batch in hand, from `queue` if necessary; false when there is none. */
static bool pick_up(xmalloc_state *state, hz_mailbox *queue)
{
    hz_block message;
    if (state->batch != NULL) return true;
    if (!hz_mailbox_receive_shared(queue, &message)) return false;
    state->batch = message.at;
    state->count = message.size;
    state->at = 0;
    return true;
}

/* Puts the batch in hand into `queue`: there is room for all of them. */
static void put_down(xmalloc_state *state, hz_mailbox *queue)
{
    (void)hz_mailbox_send(queue, (hz_block){state->batch, state->at});
    state->batch = NULL;
}

static size_t produce(hz_player *p, xmalloc_state *state, size_t most)
{
    size_t done = 0;
    if (!pick_up(state, state->pool->empty)) return 0;
    for (; done < most && state->at < state->batch_room; done++) {
        const uint32_t draw = hz_scale(hz_low(hz_random(&p->rng)), HZ_LENGTH(usual_sizes));
        state->batch[state->at++] = hz_take_block(p, usual_sizes[draw]);
    }
    if (state->at == state->batch_room) put_down(state, state->pool->full);
    return done;
}

static size_t consume(hz_player *p, xmalloc_state *state, size_t most)
{
    size_t done = 0;
    if (!pick_up(state, state->pool->full)) return 0;
    for (; done < most && state->at < state->count; done++) hz_give(p, state->batch[state->at++]);
    if (state->at == state->count) put_down(state, state->pool->empty);
    return done;
}

static size_t step(hz_player *p, size_t most)
{
    xmalloc_state *state = p->state;
    return state->producer ? produce(p, state, most) : consume(p, state, most);
}

/* A producer lets go of what it has begun; a consumer frees what there is. */
static bool drain(hz_player *p, size_t *done)
{
    xmalloc_state *state = p->state;
    if (state->producer && state->batch != NULL) put_down(state, state->pool->full);
    if (!state->producer)
        for (size_t more; (more = consume(p, state, SIZE_MAX)) > 0;) *done += more;
    return true;
}

/* A consumer frees what is left of its batch and of the pool, a producer what it has begun. */
static void end(hz_player *p)
{
    xmalloc_state *state = p->state;
    if (!state->producer)
        while (consume(p, state, SIZE_MAX) > 0) continue;
    else if (state->batch != NULL)
        hz_give_rest(p, state->batch, state->at);
}

const hz_workload hz_workload_xmalloc = {
    .name = "xmalloc",
    .doc = "batches of blocks are filled by half of the threads and freed by the others, through "
           "a shared pool. An operation is one malloc or one free",
    .source = "xmalloc-test of mimalloc-bench; Lever and Boreham, malloc() Performance in a "
              "Multithreaded Linux Environment (USENIX 2000)",
    .needs_two = true,
    .has_producers = true,
    .params =
        {
            {"batch", 512, 1, 1 << 16, NULL, "blocks", "blocks in a batch"},
        },
    .settings = {{"xmalloc-test", "the batches of xmalloc-test, sizes drawn (-s -1)",
                  "batch=4096"}},
    .state_bytes = sizeof(xmalloc_state),
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .drain = drain,
    .end = end,
};
