/*
 * alloctest: a big array of blocks at random places, each replaced at random.
 */
#include <math.h>

#include "blocks.h"

enum { MIN_SIZE, MAX_SIZE, SIZES, ITEMS };
enum { UNIFORM, EXPONENTIAL };
enum { OCTAVE_BITS = 5 };

static const char *const distributions[] = {"uniform", "exponential", NULL};

static const hz_bench_param params[] = {
    {"min_size", 8, 1, 1 << 26, NULL, "bytes", "smallest block"},
    {"max_size", 2048, 1, 1 << 26, NULL, "bytes", "largest block"},
    {"sizes", EXPONENTIAL, 0, 0, distributions, "",
     "uniform, or exponential: every doubling of the size is drawn equally often"},
    {"items", 16384, 1, 1 << 24, NULL, "blocks", "live blocks of a thread"},
};

typedef struct alloctest_state {
    hz_sizes uniform;    /* what is asked for */
    bool exponential;    /* whether octaves are drawn first */
    uint32_t least_log;  /* exponential: logarithm of the least size, in 1/2^27 of an octave */
    uint64_t log_count;  /* exponential: as many steps up to the largest */
    uint32_t item_count; /* length of `items` */
    hz_block items[];    /* the live blocks */
} alloctest_state;

static void prepare(hz_run *run)
{
    (void)hz_sizes_between(run->values[MIN_SIZE], run->values[MAX_SIZE]);
}

/* Logarithm of a size to the base 2, in fixed point: 5 bits of octave, 27 of fraction. */
static uint32_t log_of(int64_t size)
{
    return (uint32_t)(log2((double)size) * (double)(UINT32_C(1) << (32 - OCTAVE_BITS)));
}

/* A size whose logarithm is drawn evenly; inside an octave the fraction is taken as it is. */
static inline uint32_t draw_exponential(const alloctest_state *state, uint32_t bits)
{
    const uint32_t logarithm = state->least_log + hz_scale(bits, state->log_count);
    const uint32_t octave = logarithm >> (32 - OCTAVE_BITS);
    const uint32_t fraction = logarithm << OCTAVE_BITS;
    return (UINT32_C(1) << octave) + hz_scale(fraction, UINT64_C(1) << octave);
}

static inline hz_block new_block(hz_player *p, const alloctest_state *state, uint32_t bits)
{
    return hz_take_block(p, state->exponential ? draw_exponential(state, bits)
                                               : hz_sizes_draw(state->uniform, bits));
}

static void begin(hz_player *p)
{
    const int64_t *values = p->run->values;
    const size_t items = (size_t)values[ITEMS];
    alloctest_state *state = hz_harness_alloc(sizeof *state + items * sizeof(hz_block));
    state->uniform = hz_sizes_between(values[MIN_SIZE], values[MAX_SIZE]);
    state->exponential = values[SIZES] == EXPONENTIAL;
    state->least_log = log_of(values[MIN_SIZE]);
    state->log_count = log_of(values[MAX_SIZE]) - state->least_log + UINT64_C(1);
    state->item_count = (uint32_t)items;
    for (size_t i = 0; i < items; i++)
        state->items[i] = new_block(p, state, hz_high(hz_random(&p->rng)));
    p->state = state;
}

static size_t step(hz_player *p, size_t most)
{
    alloctest_state *state = p->state;
    for (size_t i = 0; i < most; i++) {
        const uint64_t draw = hz_random(&p->rng);
        hz_block *item = &state->items[hz_scale(hz_low(draw), state->item_count)];
        hz_give(p, *item);
        *item = new_block(p, state, hz_high(draw));
    }
    return most;
}

static void end(hz_player *p)
{
    alloctest_state *state = p->state;
    hz_give_rest(p, state->items, state->item_count);
}

const hz_workload hz_workload_alloctest = {
    .name = "alloctest",
    .doc = "a big array of live blocks of uniform or exponential sizes, replaced at random. An "
           "operation is one replacement",
    .source = "the alloc-test of ITHare, as in mimalloc-bench",
    .min_threads = 1,
    .steady = true,
    .batch = 64,
    .params = params,
    .param_count = HZ_LENGTH(params),
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .end = end,
};
