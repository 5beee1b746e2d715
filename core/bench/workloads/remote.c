/*
 * remote: a given share of the frees is done by another thread.
 *
 * A player draws a random slot: an empty one is allocated; the block of a full one is freed, or
 * with probability R handed to another player, which frees it. The loop is closed (see mailbox.h):
 * a full mailbox makes the sender wait, it never frees the block itself instead. So the share does
 * not depend on the allocator.
 */
#include "mailbox.h"

enum { REMOTE, MIN_SIZE, MAX_SIZE, WS, FAN, MAILBOX };
enum { FAN_NEXT, FAN_ALL };

static const char *const fans[] = {"next", "all", NULL};

static const hz_bench_param params[] = {
    {"remote", 50, 0, 100, NULL, "%", "share of the frees that another thread does"},
    {"min_size", 16, 1, 1 << 26, NULL, "bytes", "smallest block"},
    {"max_size", 2048, 1, 1 << 26, NULL, "bytes", "largest block"},
    {"ws", 400, 1, 1 << 24, NULL, "slots", "slots of a thread, of which half are full on average"},
    {"fan", FAN_NEXT, 0, 0, fans, "",
     "which thread gets a block: the next one, or a random one of all the others"},
    {"mailbox", 128, 2, 1 << 16, NULL, "blocks",
     "room of a thread's mailbox, rounded up to a power of two"},
};

static const hz_bench_setting settings[] = {
    {"guard", "the guard range of the hakozuna tables", "min_size=16 max_size=2048"},
    {"main", "the main range of the hakozuna tables", "min_size=16 max_size=32768"},
    {"medium", "the medium range of the hakozuna tables", "min_size=4097 max_size=65536"},
    {"cross128", "the cross128 range of the hakozuna tables", "min_size=16 max_size=131072"},
};

typedef struct remote_state {
    hz_mailbox *inbox;   /* the player's own mailbox */
    hz_mailbox *boxes;   /* of all players */
    hz_unsent unsent;    /* a block that found a full mailbox */
    hz_sizes sizes;      /* what is asked for */
    uint64_t threshold;  /* a coin below it (of 2^32) says: remote */
    uint32_t slot_count; /* length of `slots` */
    uint32_t next;       /* index of the next player */
    bool fan_all;        /* whether the receiver is drawn */
    hz_block slots[];    /* the working set */
} remote_state;

static void prepare(hz_run *run)
{
    const int64_t *values = run->values;
    (void)hz_sizes_between(values[MIN_SIZE], values[MAX_SIZE]);
    if (run->threads == 1 && values[REMOTE] > 0)
        hz_refuse("--remote %lld: there is no other thread to free the blocks of one: use --remote "
                  "0 or more "
                  "--threads",
                  (long long)values[REMOTE]);
    run->shared = hz_mailboxes_new(run->threads, (size_t)values[MAILBOX],
                                   values[FAN] == FAN_NEXT || run->threads <= 2);
    run->remote_target = (double)values[REMOTE];
}

static void begin(hz_player *p)
{
    const hz_run *run = p->run;
    const int64_t *values = run->values;
    const size_t slots = (size_t)values[WS];
    remote_state *state = hz_harness_alloc(sizeof *state + slots * sizeof(hz_block));
    state->boxes = run->shared;
    state->inbox = &state->boxes[p->index];
    state->threshold = ((uint64_t)values[REMOTE] << 32) / 100;
    state->sizes = hz_sizes_between(values[MIN_SIZE], values[MAX_SIZE]);
    state->slot_count = (uint32_t)slots;
    state->next = (p->index + 1) % run->threads;
    state->fan_all = values[FAN] == FAN_ALL;
    p->state = state;
}

static inline hz_mailbox *choose_addressee(hz_player *p, const remote_state *state)
{
    uint32_t receiver = state->next;
    if (state->fan_all) {
        receiver = hz_scale(hz_low(hz_random(&p->rng)), p->run->threads - 1);
        receiver += receiver >= p->index;
    }
    return &state->boxes[receiver];
}

/* One draw: allocate into an empty slot, or free a full one here or there; false: has to wait. */
static inline bool play(hz_player *p, remote_state *state)
{
    const uint64_t draw = hz_random(&p->rng);
    hz_block *slot = &state->slots[hz_scale(hz_low(draw), state->slot_count)];
    const hz_block block = *slot;
    if (block.at == NULL) {
        *slot = hz_take_block(p, hz_sizes_draw(state->sizes, hz_high(draw)));
        return true;
    }
    slot->at = NULL;
    if (hz_high(draw) < state->threshold)
        return hz_post(p, &state->unsent, choose_addressee(p, state), block);
    hz_give(p, block);
    p->local_frees++;
    return true;
}

static size_t step(hz_player *p, size_t most)
{
    remote_state *state = p->state;
    size_t done = 0;
    hz_empty_inbox(p, state->inbox);
    if (HZ_UNLIKELY(!hz_post_again(&state->unsent))) return 0;
    while (done < most) {
        done++;
        if (HZ_UNLIKELY(hz_mailbox_has_some(state->inbox))) hz_empty_inbox(p, state->inbox);
        if (HZ_UNLIKELY(!play(p, state))) break;
    }
    return done;
}

static bool drain(hz_player *p, size_t *done)
{
    remote_state *state = p->state;
    (void)done;
    hz_empty_inbox(p, state->inbox);
    return hz_post_again(&state->unsent);
}

static void end(hz_player *p)
{
    remote_state *state = p->state;
    hz_empty_inbox(p, state->inbox);
    hz_give_rest(p, &state->unsent.block, 1);
    hz_give_rest(p, state->slots, state->slot_count);
}

const hz_workload hz_workload_remote = {
    .name = "remote",
    .doc = "random slots are allocated and freed, and a given share of the blocks is handed to "
           "another thread that frees them; a closed loop. An operation is one malloc, or one "
           "decision to free",
    .source = "the remote-free mix of the hakmem and hakozuna tables",
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
    .drain = drain,
    .end = end,
};
