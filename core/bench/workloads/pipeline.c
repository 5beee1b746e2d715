/*
 * pipeline: half of the players allocate, the other half frees what they are sent.
 *
 * Every block is freed by another thread. A producer sends to the consumers in turn, each through a
 * bounded queue; when that is full it waits.
 */
#include "mailbox.h"

enum { MIN_SIZE, MAX_SIZE, QUEUE };

typedef struct pipeline_state {
    hz_mailbox *queues;      /* one for each consumer */
    unsigned consumer_count; /* how many */
    unsigned next;           /* the consumer whose turn it is */
} pipeline_state;

static void prepare(hz_run *run)
{
    const unsigned producers = hz_producer_count(run);
    run->shared =
        hz_mailboxes_new(run->threads - producers, (size_t)run->values[QUEUE], producers == 1);
}

/* A player with an inbox is a consumer. */
static void begin(hz_player *p)
{
    const unsigned producers = hz_producer_count(p->run);
    pipeline_state *state = p->state;
    state->queues = p->run->shared;
    state->consumer_count = p->run->threads - producers;
    state->next = p->index % state->consumer_count;
    if (p->index >= producers) p->inbox = &state->queues[p->index - producers];
}

/* Allocates one block and sends it on; false when the player has to wait. */
static inline bool produce(hz_player *p, pipeline_state *state)
{
    const uint32_t size = hz_sizes_draw(p->sizes, hz_low(hz_random(&p->rng)));
    hz_mailbox *to = &state->queues[state->next];
    state->next = state->next + 1 == state->consumer_count ? 0 : state->next + 1;
    return hz_post(p, to, hz_take_block(p, size));
}

HZ_PLAY_AND_POST(produce_all, produce)

static size_t consume(hz_player *p, size_t most)
{
    hz_block block;
    size_t done = 0;
    for (; done < most && hz_mailbox_receive(p->inbox, &block); done++) hz_give(p, block);
    return done;
}

static size_t step(hz_player *p, size_t most)
{
    return p->inbox != NULL ? consume(p, most) : produce_all(p, most);
}

static bool drain(hz_player *p, size_t *done)
{
    if (p->inbox != NULL) *done += consume(p, SIZE_MAX);
    return hz_post_again(p);
}

const hz_workload hz_workload_pipeline = {
    .name = "pipeline",
    .doc = "half of the threads allocate, the others free what they are sent through bounded "
           "queues. An operation is one malloc or one free",
    .source = "the producer-consumer benchmark of the hakmem tables",
    .needs_two = true,
    .has_producers = true,
    .params = {HZ_SIZE_PARAMS(8, 1024),
               {"queue", 1024, 2, 1 << 18, NULL, "blocks",
                "room of each consumer's queue, rounded up to a power of two"}},
    .settings = {{"published", "four producers, four consumers, 4096 places in all", "queue=1024"}},
    .state_bytes = sizeof(pipeline_state),
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .drain = drain,
};
