/*
 * sh6 and sh8: groups of six blocks of one drawn size; half of each group is freed at once, one
 * group forwards, the next in reverse; the others are kept for a while. In sh8 the kept blocks are
 * freed by the next thread.
 */
#include "mailbox.h"

enum { MIN_SIZE, MAX_SIZE, KEPT };
enum { GROUP = 6, FREED = 3 };

static const hz_bench_param params[] = {
    {"min_size", 1, 1, 1 << 20, NULL, "bytes", "smallest block"},
    {"max_size", 1000, 1, 1 << 20, NULL, "bytes", "largest block"},
    {"kept", 1000, 1, 1 << 20, NULL, "blocks", "blocks that are kept, the oldest going first"},
};

typedef struct sh_state {
    hz_mailbox *inbox;       /* sh8: the player's own mailbox */
    hz_mailbox *next;        /* sh8: the next player's; NULL: blocks are freed at home */
    hz_unsent unsent;        /* a block that found a full mailbox */
    hz_sizes sizes;          /* what is asked for */
    hz_block waiting[FREED]; /* of the last group: to be kept */
    size_t waiting_count;    /* how many */
    bool reverse;            /* whether the next group is freed in reverse */
    uint32_t kept_count;     /* length of `kept` */
    uint32_t oldest;         /* index of the block that was kept longest */
    hz_block kept[];         /* a ring */
} sh_state;

static void prepare_sh6(hz_run *run)
{
    (void)hz_sizes_between(run->values[MIN_SIZE], run->values[MAX_SIZE]);
}

static void prepare_sh8(hz_run *run)
{
    prepare_sh6(run);
    run->shared = hz_mailboxes_new(run->threads, 128, true);
}

static void begin(hz_player *p)
{
    const int64_t *values = p->run->values;
    const size_t kept = (size_t)values[KEPT];
    hz_mailbox *boxes = p->run->shared;
    sh_state *state = hz_harness_alloc(sizeof *state + kept * sizeof(hz_block));
    if (boxes != NULL) {
        state->inbox = &boxes[p->index];
        state->next = &boxes[(p->index + 1) % p->run->threads];
    }
    state->sizes = hz_sizes_between(values[MIN_SIZE], values[MAX_SIZE]);
    state->kept_count = (uint32_t)kept;
    p->state = state;
}

/* Keeps a block in the place of the oldest, which goes; false when the player has to wait. */
static bool keep(hz_player *p, sh_state *state, hz_block block)
{
    hz_block *place = &state->kept[state->oldest];
    const hz_block old = *place;
    *place = block;
    state->oldest = state->oldest + 1 == state->kept_count ? 0 : state->oldest + 1;
    if (old.at == NULL) return true;
    if (state->next != NULL) return hz_post(p, &state->unsent, state->next, old);
    hz_give(p, old);
    return true;
}

/* Six blocks, of which every second one is freed at once; the others are to be kept. */
static void play_group(hz_player *p, sh_state *state)
{
    hz_block group[GROUP];
    const uint32_t size = hz_sizes_draw(state->sizes, hz_low(hz_random(&p->rng)));
    for (size_t i = 0; i < GROUP; i++) group[i] = hz_take_block(p, size);
    for (size_t i = 0; i < FREED; i++) {
        hz_give(p, group[2 * (state->reverse ? FREED - 1 - i : i)]);
        state->waiting[i] = group[2 * i + 1];
    }
    state->waiting_count = FREED;
    state->reverse = !state->reverse;
    p->local_frees += FREED;
}

/* Keeps what is to be kept; false when the player has to wait. */
static bool settle_player(hz_player *p, sh_state *state)
{
    bool free_to_go = hz_post_again(&state->unsent);
    while (free_to_go && state->waiting_count > 0)
        free_to_go = keep(p, state, state->waiting[--state->waiting_count]);
    return free_to_go;
}

static void drain_inbox(hz_player *p, sh_state *state)
{
    if (state->inbox != NULL) hz_empty_inbox(p, state->inbox);
}

static size_t step(hz_player *p, size_t most)
{
    sh_state *state = p->state;
    size_t done = 0;
    drain_inbox(p, state);
    bool free_to_go = settle_player(p, state);
    while (free_to_go && done < most) {
        play_group(p, state);
        free_to_go = settle_player(p, state);
        done++;
    }
    return done;
}

static bool drain(hz_player *p, size_t *done)
{
    sh_state *state = p->state;
    (void)done;
    drain_inbox(p, state);
    return settle_player(p, state);
}

static void end(hz_player *p)
{
    sh_state *state = p->state;
    drain_inbox(p, state);
    hz_give_rest(p, &state->unsent.block, 1);
    hz_give_rest(p, state->waiting, state->waiting_count);
    hz_give_rest(p, state->kept, state->kept_count);
}

const hz_workload hz_workload_sh6 = {
    .name = "sh6",
    .doc =
        "groups of six blocks of one drawn size: half are freed at once, forwards or in reverse, "
        "half are kept for a while. An operation is one group",
    .source = "the SmartHeap benchmark, as sh6bench in mimalloc-bench",
    .min_threads = 1,
    .steady = true,
    .batch = 16,
    .params = params,
    .param_count = HZ_LENGTH(params),
    .prepare = prepare_sh6,
    .begin = begin,
    .step = step,
    .drain = drain,
    .end = end,
};

const hz_workload hz_workload_sh8 = {
    .name = "sh8",
    .doc =
        "as sh6, but the blocks that were kept are freed by the next thread. An operation is one "
        "group",
    .source = "the SmartHeap benchmark, as sh8bench in mimalloc-bench",
    .min_threads = 2,
    .steady = true,
    .batch = 16,
    .params = params,
    .param_count = HZ_LENGTH(params),
    .prepare = prepare_sh8,
    .begin = begin,
    .step = step,
    .drain = drain,
    .end = end,
};
