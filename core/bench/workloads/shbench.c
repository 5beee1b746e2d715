/*
 * sh6 and sh8: groups of six blocks of one drawn size; half of each group is freed at once, one
 * group forwards, the next in reverse; the others are kept for a while. In sh8 the kept blocks are
 * freed by the next thread.
 */
#include "mailbox.h"

enum { GROUP = 6, FREED = 3 };

typedef struct sh_state {
    hz_mailbox *next;        /* sh8: the next player's; NULL: blocks are freed at home */
    hz_block waiting[FREED]; /* of the last group: to be kept */
    size_t waiting_count;    /* how many */
    bool reverse;            /* whether the next group is freed in reverse */
    uint32_t oldest;         /* slot of the block that was kept longest */
} sh_state;

static void prepare_sh8(hz_run *run)
{
    run->shared = hz_mailboxes_new(run->threads, 128, true);
}

static void begin_sh8(hz_player *p)
{
    hz_mailbox *boxes = p->run->shared;
    p->inbox = &boxes[p->index];
    ((sh_state *)p->state)->next = &boxes[(p->index + 1) % p->run->threads];
}

/* Keeps a block in the place of the oldest, which goes; false when the player has to wait. */
static bool keep(hz_player *p, sh_state *state, hz_block block)
{
    hz_block *place = &p->slots[state->oldest];
    const hz_block old = *place;
    *place = block;
    state->oldest = state->oldest + 1 == p->slot_count ? 0 : state->oldest + 1;
    if (old.at == NULL) return true;
    if (state->next != NULL) return hz_post(p, state->next, old);
    hz_give(p, old);
    return true;
}

/* Six blocks, of which every second one is freed at once; the others are to be kept. */
static void play_group(hz_player *p, sh_state *state)
{
    hz_block group[GROUP];
    const uint32_t size = hz_sizes_draw(p->sizes, hz_low(hz_random(&p->rng)));
    for (size_t i = 0; i < GROUP; i++) group[i] = hz_take_block(p, size);
    for (size_t i = 0; i < FREED; i++) {
        hz_give(p, group[2 * (state->reverse ? FREED - 1 - i : i)]);
        state->waiting[i] = group[2 * i + 1];
    }
    state->waiting_count = FREED;
    state->reverse = !state->reverse;
}

/* Keeps what is to be kept; false when the player has to wait. */
static bool settle_player(hz_player *p, sh_state *state)
{
    bool free_to_go = hz_post_again(p);
    while (free_to_go && state->waiting_count > 0)
        free_to_go = keep(p, state, state->waiting[--state->waiting_count]);
    return free_to_go;
}

static size_t step(hz_player *p, size_t most)
{
    sh_state *state = p->state;
    size_t done = 0;
    if (p->inbox != NULL) hz_empty_inbox(p);
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
    (void)done;
    if (p->inbox != NULL) hz_empty_inbox(p);
    return settle_player(p, p->state);
}

static void end(hz_player *p)
{
    sh_state *state = p->state;
    hz_give_rest(p, state->waiting, state->waiting_count);
}

/* What the two rows have in common. */
#define SH_WORKLOAD                                                                                \
    .batch = 16,                                                                                   \
    .params = {{"min_size", 1, 1, 1 << 20, NULL, "bytes", "smallest block"},                       \
               {"max_size", 1000, 1, 1 << 20, NULL, "bytes", "largest block"},                     \
               {"kept", 1000, 1, 1 << 20, NULL, "blocks",                                          \
                "blocks that are kept, the oldest going first"}},                                  \
    .state_bytes = sizeof(sh_state), .slots = "kept", .step = step, .drain = drain, .end = end

const hz_workload hz_workload_sh6 = {
    .name = "sh6",
    .doc =
        "groups of six blocks of one drawn size: half are freed at once, forwards or in reverse, "
        "half are kept for a while. An operation is one group",
    .source = "the SmartHeap benchmark, as sh6bench in mimalloc-bench",
    SH_WORKLOAD,
};

const hz_workload hz_workload_sh8 = {
    .name = "sh8",
    .doc =
        "as sh6, but the blocks that were kept are freed by the next thread. An operation is one "
        "group",
    .source = "the SmartHeap benchmark, as sh8bench in mimalloc-bench",
    .needs_two = true,
    .prepare = prepare_sh8,
    .begin = begin_sh8,
    SH_WORKLOAD,
};
