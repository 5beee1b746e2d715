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

typedef struct remote_state {
    hz_mailbox *boxes;  /* of all players */
    uint64_t threshold; /* a coin below it (of 2^32) says: remote */
    uint32_t next;      /* index of the next player */
    bool fan_all;       /* whether the receiver is drawn */
} remote_state;

static void prepare(hz_run *run)
{
    const int64_t *values = run->values;
    if (run->threads == 1 && values[REMOTE] > 0)
        hz_refuse("--remote %lld: there is no other thread to free the blocks of one: use --remote "
                  "0 or more --threads",
                  (long long)values[REMOTE]);
    run->shared = hz_mailboxes_new(run->threads, (size_t)values[MAILBOX],
                                   values[FAN] == FAN_NEXT || run->threads <= 2);
}

static void begin(hz_player *p)
{
    const hz_run *run = p->run;
    remote_state *state = p->state;
    state->boxes = run->shared;
    state->threshold = ((uint64_t)run->values[REMOTE] << 32) / 100;
    state->next = (p->index + 1) % run->threads;
    state->fan_all = run->values[FAN] == FAN_ALL;
    p->inbox = &state->boxes[p->index];
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
    if (HZ_UNLIKELY(hz_mailbox_has_some(p->inbox))) hz_empty_inbox(p);
    const uint64_t draw = hz_random(&p->rng);
    hz_block *slot = &p->slots[hz_scale(hz_low(draw), p->slot_count)];
    const hz_block block = *slot;
    if (block.at == NULL) {
        *slot = hz_take_block(p, hz_sizes_draw(p->sizes, hz_high(draw)));
        return true;
    }
    slot->at = NULL;
    if (hz_high(draw) < state->threshold) return hz_post(p, choose_addressee(p, state), block);
    hz_give(p, block);
    return true;
}

HZ_PLAY_AND_POST(step, play)

const hz_workload hz_workload_remote = {
    .name = "remote",
    .doc = "random slots are allocated and freed, and a given share of the blocks is handed to "
           "another thread that frees them; a closed loop. An operation is one malloc, or one "
           "decision to free",
    .source = "the remote-free mix of the hakmem and hakozuna tables",
    .params =
        {
            {"remote", 50, 0, 100, NULL, "%", "share of the frees that another thread does"},
            HZ_SIZE_PARAMS(16, 2048),
            {"ws", 400, 1, 1 << 24, NULL, "slots",
             "slots of a thread, of which half are full on average"},
            {"fan", FAN_NEXT, 0, 0, fans, "",
             "which thread gets a block: the next one, or a random one of all the others"},
            {"mailbox", 128, 2, 1 << 16, NULL, "blocks",
             "room of a thread's mailbox, rounded up to a power of two"},
        },
    .settings =
        {
            {"guard", "the guard range of the hakozuna tables", "min_size=16 max_size=2048"},
            {"main", "the main range of the hakozuna tables", "min_size=16 max_size=32768"},
            {"medium", "the medium range of the hakozuna tables", "min_size=4097 max_size=65536"},
            {"cross128", "the cross128 range of the hakozuna tables",
             "min_size=16 max_size=131072"},
        },
    .state_bytes = sizeof(remote_state),
    .slots = "ws",
    .prepare = prepare,
    .begin = begin,
    .step = step,
};
