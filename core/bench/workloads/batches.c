/*
 * lifo, fifo, random, interleaved, mixed: batches of blocks are allocated and freed in that order.
 *
 * There is hardly anything in these loops but malloc and free, so they are compiled once for every
 * size, and what a run keeps account of is added up by the batch. Beside malloc and free a pair of
 * lifo costs 19 instructions (callgrind, x86-64, gcc 12), the writing of 64 bytes among them; in a
 * loop written by hand, with memset, it is 30.
 */
#include "blocks.h"

enum { BLOCKS, SIZE };
enum { BLOCKS_MAX = 4096, SIZE_COUNT = 4 };

static const char *const size_words[] = {"16", "32", "64", "128", NULL};
static const uint32_t sizes[SIZE_COUNT] = {16, 32, 64, 128};

#define BLOCKS_PARAM                                                                               \
    {                                                                                              \
        "blocks", 100, 2, BLOCKS_MAX, NULL, "blocks", "blocks of a batch"                          \
    }
#define ONE_SIZE                                                                                   \
    BLOCKS_PARAM,                                                                                  \
    {                                                                                              \
        "size", 2, 0, 0, size_words, "bytes", "size of all blocks"                                 \
    }

typedef struct batch_state {
    size_t count;               /* blocks of a batch */
    uint32_t size;              /* of all blocks */
    uint16_t order[BLOCKS_MAX]; /* random: in which they are freed */
    void *blocks[BLOCKS_MAX];   /* the batch */
    uint32_t drawn[BLOCKS_MAX]; /* mixed: their sizes */
} batch_state;

static bool is_plain(const hz_player *p)
{
    return p->instruments == NULL;
}

/* A batch counts as live all the time, since nothing is read inside a step. */
static void begin(hz_player *p)
{
    batch_state *state = p->state;
    state->count = (size_t)p->run->values[BLOCKS];
    state->size = sizes[p->run->values[SIZE]];
    for (uint32_t i = 0; i < state->count; i++) {
        const uint32_t j = hz_scale(hz_low(hz_random(&p->rng)), i + 1);
        state->order[i] = state->order[j];
        state->order[j] = (uint16_t)i;
    }
    p->live_bytes = (int64_t)(state->count * state->size);
}

static void end(hz_player *p)
{
    p->live_bytes = 0;
}

#define INLINED static inline __attribute__((always_inline))

/* --- one block ------------------------------------------------------------------------------- */

/* As hz_take, but for the account: `plain` is known for the whole batch. */
INLINED void *batch_take(hz_player *p, bool plain, size_t size)
{
    if (!plain) return hz_take(p, size);
    void *block = malloc(size);
    if (HZ_UNLIKELY(block == NULL)) hz_fail_memory(size);
    hz_touch_head(block, size);
    return block;
}

INLINED void batch_give(hz_player *p, bool plain, void *block, uint32_t size)
{
    if (plain)
        free(block);
    else
        hz_give(p, (hz_block){block, size});
}

/* --- one batch of each kind ------------------------------------------------------------------ */

INLINED void take_all(hz_player *p, batch_state *state, size_t count, bool plain, uint32_t size)
{
    for (size_t i = 0; i < count; i++) state->blocks[i] = batch_take(p, plain, size);
}

INLINED void lifo(hz_player *p, batch_state *state, size_t count, bool plain, uint32_t size)
{
    take_all(p, state, count, plain, size);
    for (size_t i = count; i-- > 0;) batch_give(p, plain, state->blocks[i], size);
}

INLINED void fifo(hz_player *p, batch_state *state, size_t count, bool plain, uint32_t size)
{
    take_all(p, state, count, plain, size);
    for (size_t i = 0; i < count; i++) batch_give(p, plain, state->blocks[i], size);
}

/* Each batch swaps one pair of the order, which so becomes and stays random. */
INLINED void in_random_order(hz_player *p, batch_state *state, size_t count, bool plain,
                             uint32_t size)
{
    const uint64_t draw = hz_random(&p->rng);
    const uint32_t a = hz_scale(hz_low(draw), state->count);
    const uint32_t b = hz_scale(hz_high(draw), state->count);
    const uint16_t swapped = state->order[a];
    state->order[a] = state->order[b];
    state->order[b] = swapped;
    take_all(p, state, count, plain, size);
    for (size_t i = 0; i < state->count; i++)
        if (HZ_LIKELY(state->order[i] < count))
            batch_give(p, plain, state->blocks[state->order[i]], size);
}

/* After every second malloc the oldest block is freed; the rest at the end. */
INLINED void interleaved(hz_player *p, batch_state *state, size_t count, bool plain, uint32_t size)
{
    size_t oldest = 0;
    for (size_t i = 0; i < count; i++) {
        state->blocks[i] = batch_take(p, plain, size);
        if (i % 2 != 0) batch_give(p, plain, state->blocks[oldest++], size);
    }
    while (oldest < count) batch_give(p, plain, state->blocks[oldest++], size);
}

static void mixed(hz_player *p, batch_state *state, size_t count, bool plain)
{
    int64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        state->drawn[i] = sizes[hz_random(&p->rng) >> 62];
        state->blocks[i] = batch_take(p, plain, state->drawn[i]);
        total += state->drawn[i];
    }
    for (size_t i = 0; i < count; i++) batch_give(p, plain, state->blocks[i], state->drawn[i]);
    if (total > p->live_bytes) p->live_bytes = total;
}

/* --- steps ----------------------------------------------------------------------------------- */

/* The copy of a loop that was made for the size of this run. */
#define COPY_FOR(bytes, kind, p, state, count)                                                     \
    case bytes:                                                                                    \
        kind(p, state, count, true, bytes);                                                        \
        break;
#define RUN_BATCH(kind, p, state, count)                                                           \
    switch (!is_plain(p) ? 0 : (state)->size) {                                                    \
        COPY_FOR(16, kind, p, state, count)                                                        \
        COPY_FOR(32, kind, p, state, count)                                                        \
        COPY_FOR(64, kind, p, state, count)                                                        \
        COPY_FOR(128, kind, p, state, count)                                                       \
    default:                                                                                       \
        kind(p, state, count, false, (state)->size);                                               \
    }

#define RUN_MIXED(kind, p, state, count) kind(p, state, count, is_plain(p))

/* A workload: its step, its row. */
#define WORKLOAD(kind, symbol, title, doc_, RUN, ...)                                              \
    static size_t step_##kind(hz_player *p, size_t most)                                           \
    {                                                                                              \
        batch_state *state = p->state;                                                             \
        for (size_t done = 0, count; done < most; done += count) {                                 \
            count = most - done < state->count ? most - done : state->count;                       \
            RUN(kind, p, state, count);                                                            \
        }                                                                                          \
        return most;                                                                               \
    }                                                                                              \
    const hz_workload hz_workload_##symbol = {                                                     \
        .name = title,                                                                             \
        .doc = doc_ ". An operation is one malloc and its free",                                   \
        .source = "the comprehensive benchmark of the hakmem tables",                              \
        .batch = 1000,                                                                             \
        .params = {__VA_ARGS__},                                                                   \
        .state_bytes = sizeof(batch_state),                                                        \
        .begin = begin,                                                                            \
        .step = step_##kind,                                                                       \
        .end = end,                                                                                \
    };

WORKLOAD(lifo, lifo, "lifo", "a batch of blocks is allocated and freed in reverse order", RUN_BATCH,
         ONE_SIZE)
WORKLOAD(fifo, fifo, "fifo", "a batch of blocks is allocated and freed in the same order",
         RUN_BATCH, ONE_SIZE)
WORKLOAD(in_random_order, random, "random", "a batch of blocks is allocated and freed at random",
         RUN_BATCH, ONE_SIZE)
WORKLOAD(interleaved, interleaved, "interleaved",
         "a batch of blocks is allocated, and after every second the oldest is freed", RUN_BATCH,
         ONE_SIZE)
WORKLOAD(mixed, mixed, "mixed",
         "a batch of blocks of 16, 32, 64 and 128 bytes is allocated and freed in the same order",
         RUN_MIXED, BLOCKS_PARAM)
