/*
 * pipeline: half of the players allocate, the other half frees what they are sent.
 *
 * Every block is freed by another thread. A producer sends to the consumers in turn, each through a
 * bounded queue; when that is full it waits.
 */
#include "mailbox.h"

enum { MIN_SIZE, MAX_SIZE, QUEUE };

static const hz_bench_param params[] = {
    {"min_size", 8, 1, 1 << 26, NULL, "bytes", "smallest block"},
    {"max_size", 1024, 1, 1 << 26, NULL, "bytes", "largest block"},
    {"queue", 1024, 2, 1 << 18, NULL, "blocks",
     "room of each consumer's queue, rounded up to a power of two"},
};

static const hz_bench_setting settings[] = {
    {"published", "four producers, four consumers, 4096 places in all", "queue=1024"},
};

typedef struct pipeline_state {
    hz_mailbox *queues;      /* one for each consumer */
    hz_mailbox *inbox;       /* a consumer's own queue; NULL makes this a producer */
    hz_unsent unsent;        /* a producer's block that found a full queue */
    hz_sizes sizes;          /* what is asked for */
    unsigned consumer_count; /* length of `queues` */
    unsigned next;           /* the consumer whose turn it is */
} pipeline_state;

static unsigned producer_count(const hz_run *run)
{
    return run->threads / 2;
}

static void prepare(hz_run *run)
{
    (void)hz_sizes_between(run->values[MIN_SIZE], run->values[MAX_SIZE]);
    const unsigned producers = producer_count(run);
    run->shared =
        hz_mailboxes_new(run->threads - producers, (size_t)run->values[QUEUE], producers == 1);
    run->remote_target = 100;
}

static void begin(hz_player *p)
{
    const hz_run *run = p->run;
    const unsigned producers = producer_count(run);
    pipeline_state *state = hz_harness_alloc(sizeof *state);
    state->queues = run->shared;
    state->consumer_count = run->threads - producers;
    state->inbox = p->index < producers ? NULL : &state->queues[p->index - producers];
    state->sizes = hz_sizes_between(run->values[MIN_SIZE], run->values[MAX_SIZE]);
    state->next = p->index % state->consumer_count;
    p->state = state;
}

/* Allocates one block and sends it on; false when the player has to wait. */
static inline bool produce(hz_player *p, pipeline_state *state)
{
    const uint32_t size = hz_sizes_draw(state->sizes, hz_low(hz_random(&p->rng)));
    hz_mailbox *to = &state->queues[state->next];
    state->next = state->next + 1 == state->consumer_count ? 0 : state->next + 1;
    return hz_post(p, &state->unsent, to, hz_take_block(p, size));
}

static inline size_t consume(hz_player *p, pipeline_state *state, size_t most)
{
    hz_block block;
    size_t done = 0;
    for (; done < most && hz_mailbox_receive(state->inbox, &block); done++)
        hz_give_foreign(p, block);
    p->remote_frees += done;
    return done;
}

static size_t step(hz_player *p, size_t most)
{
    pipeline_state *state = p->state;
    if (state->inbox != NULL) return consume(p, state, most);
    size_t done = 0;
    if (HZ_UNLIKELY(!hz_post_again(&state->unsent))) return 0;
    while (done < most) {
        done++;
        if (HZ_UNLIKELY(!produce(p, state))) break;
    }
    return done;
}

/* Fixed work is given to the producers; consumers serve them until they have done it. */
static uint64_t quota(const hz_run *run, unsigned index)
{
    const unsigned producers = producer_count(run);
    const uint64_t blocks = run->options->ops / 2;
    return index < producers ? blocks / producers + (index < blocks % producers) : 0;
}

static bool drain(hz_player *p, size_t *done)
{
    pipeline_state *state = p->state;
    if (state->inbox != NULL) *done += consume(p, state, SIZE_MAX);
    return hz_post_again(&state->unsent);
}

static void end(hz_player *p)
{
    pipeline_state *state = p->state;
    if (state->inbox != NULL) (void)consume(p, state, SIZE_MAX);
    hz_give_rest(p, &state->unsent.block, 1);
}

const hz_workload hz_workload_pipeline = {
    .name = "pipeline",
    .doc = "half of the threads allocate, the others free what they are sent through bounded "
           "queues. An operation is one malloc or one free",
    .source = "the producer-consumer benchmark of the hakmem tables",
    .min_threads = 2,
    .steady = true,
    .batch = 64,
    .params = params,
    .param_count = HZ_LENGTH(params),
    .settings = settings,
    .setting_count = HZ_LENGTH(settings),
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .drain = drain,
    .end = end,
    .quota = quota,
};
