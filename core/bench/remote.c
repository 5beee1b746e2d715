/*
 * remote: a given share of the frees is done by another thread.
 *
 * A worker draws a random slot: an empty one is allocated; the block of a full one is freed, or
 * with probability R handed to another worker, which frees it. The loop is closed: when the
 * receiver's mailbox is full, the sender empties its own and waits. It never frees the block itself
 * instead, so the share does not depend on the allocator.
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
     "who gets a block: the next thread, or a random one of all the others"},
    {"mailbox", 128, 2, 1 << 16, NULL, "blocks",
     "room of a thread's mailbox, rounded up to a power of two"},
};

static const hz_bench_setting settings[] = {
    {"guard", "the guard range of the hakozuna tables", "min_size=16 max_size=2048"},
    {"main", "the main range of the hakozuna tables", "min_size=16 max_size=32768"},
    {"medium", "the medium range of the hakozuna tables", "min_size=4097 max_size=65536"},
    {"cross128", "the cross128 range of the hakozuna tables", "min_size=16 max_size=131072"},
};

typedef struct slot {
    void *block;   /* or NULL */
    uint32_t size; /* as requested */
} slot;

typedef struct remote_state {
    hz_mailbox *inbox;     /* the worker's own mailbox */
    hz_mailbox *boxes;     /* everybody's */
    hz_letter unsent;      /* a block that found its receiver's mailbox full, or {NULL} */
    hz_mailbox *addressee; /* where `unsent` goes */
    uint64_t threshold;    /* a coin below it (of 2^32) says: remote */
    uint64_t sizes;        /* how many different sizes there are */
    uint32_t min_size;     /* the smallest */
    uint32_t slot_count;   /* length of `slots` */
    uint32_t next;         /* index of the next worker */
    bool fan_all;          /* whether the receiver is drawn */
    slot slots[];          /* the working set */
} remote_state;

static size_t power_of_two(size_t least)
{
    size_t power = 1;
    while (power < least) power *= 2;
    return power;
}

static void prepare(hz_run *run)
{
    const int64_t *values = run->values;
    if (values[MAX_SIZE] < values[MIN_SIZE])
        hz_refuse("--max_size %lld: less than --min_size %lld", (long long)values[MAX_SIZE],
                  (long long)values[MIN_SIZE]);
    if (run->threads == 1 && values[REMOTE] > 0)
        hz_refuse("--remote %lld: one thread has nobody to free its blocks: use --remote 0 or more "
                  "--threads",
                  (long long)values[REMOTE]);
    hz_mailbox *boxes = hz_harness_alloc(run->threads * sizeof *boxes);
    const bool sole_sender = values[FAN] == FAN_NEXT || run->threads <= 2;
    for (unsigned i = 0; i < run->threads; i++)
        hz_mailbox_init(&boxes[i], power_of_two((size_t)values[MAILBOX]), sole_sender);
    run->shared = boxes;
    run->remote_target = (double)values[REMOTE];
}

static void begin(hz_worker *w)
{
    const hz_run *run = w->run;
    const int64_t *values = run->values;
    remote_state *state = hz_harness_alloc(sizeof *state + (size_t)values[WS] * sizeof(slot));
    state->boxes = run->shared;
    state->inbox = &state->boxes[w->index];
    state->threshold = ((uint64_t)values[REMOTE] << 32) / 100;
    state->min_size = (uint32_t)values[MIN_SIZE];
    state->sizes = (uint64_t)(values[MAX_SIZE] - values[MIN_SIZE] + 1);
    state->slot_count = (uint32_t)values[WS];
    state->next = (w->index + 1) % run->threads;
    state->fan_all = values[FAN] == FAN_ALL;
    w->state = state;
}

/* Frees what the others have sent. */
static inline void empty_inbox(hz_worker *w, remote_state *state)
{
    hz_letter letter;
    while (hz_mailbox_receive(state->inbox, &letter)) {
        hz_give_foreign(w, letter.block, letter.size);
        w->remote_frees++;
    }
}

static inline hz_mailbox *choose_addressee(hz_worker *w, const remote_state *state)
{
    uint32_t receiver = state->next;
    if (state->fan_all) {
        receiver = hz_scale(hz_low(hz_random(&w->rng)), w->run->threads - 1);
        receiver += receiver >= w->index;
    }
    return &state->boxes[receiver];
}

/* Hands a block over; false (and it is kept for later) when the mailbox is full. */
static inline bool post(hz_worker *w, remote_state *state, hz_letter letter)
{
    if (HZ_UNLIKELY(w->instruments != NULL)) hz_note_give(w->instruments, letter.size);
    hz_mailbox *addressee = choose_addressee(w, state);
    if (HZ_LIKELY(hz_mailbox_send(addressee, letter))) return true;
    state->addressee = addressee;
    state->unsent = letter;
    return false;
}

/* One draw: allocate into an empty slot, or free a full one here or there. False when the worker
 * has to wait. */
static inline bool play(hz_worker *w, remote_state *state)
{
    const uint64_t draw = hz_random(&w->rng);
    slot *chosen = &state->slots[hz_scale(hz_low(draw), state->slot_count)];
    if (chosen->block == NULL) {
        chosen->size = state->min_size + hz_scale(hz_high(draw), state->sizes);
        chosen->block = hz_take(w, chosen->size);
        return true;
    }
    const hz_letter letter = {chosen->block, chosen->size};
    chosen->block = NULL;
    if (hz_high(draw) < state->threshold) return post(w, state, letter);
    hz_give(w, letter.block, letter.size);
    w->local_frees++;
    return true;
}

/* Sends the block that is waiting; false when it still has to wait. */
static bool post_again(remote_state *state)
{
    if (!hz_mailbox_send(state->addressee, state->unsent)) return false;
    state->unsent.block = NULL;
    return true;
}

static size_t step(hz_worker *w, size_t most)
{
    remote_state *state = w->state;
    empty_inbox(w, state);
    if (HZ_UNLIKELY(state->unsent.block != NULL) && !post_again(state)) return 0;
    size_t done = 0;
    while (done < most) {
        empty_inbox(w, state);
        done++;
        if (HZ_UNLIKELY(!play(w, state))) break;
    }
    return done;
}

static void drain(hz_worker *w)
{
    remote_state *state = w->state;
    empty_inbox(w, state);
    if (state->unsent.block != NULL) (void)post_again(state);
}

static void end(hz_worker *w)
{
    remote_state *state = w->state;
    empty_inbox(w, state);
    if (state->unsent.block != NULL) hz_give_foreign(w, state->unsent.block, state->unsent.size);
    for (size_t i = 0; i < state->slot_count; i++)
        if (state->slots[i].block != NULL)
            hz_give_foreign(w, state->slots[i].block, state->slots[i].size);
}

const hz_workload hz_workload_remote = {
    .name = "remote",
    .doc = "random slots are allocated and freed, and a given share of the blocks is handed to "
           "another thread that "
           "frees them; a closed loop. An operation is one malloc, or one decision to free",
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
