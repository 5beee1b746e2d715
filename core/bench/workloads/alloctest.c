/*
 * alloctest: a big array of blocks at random places, each replaced at random.
 */
#include <math.h>

#include "blocks.h"

enum { MIN_SIZE, MAX_SIZE, SIZES };
enum { UNIFORM, EXPONENTIAL };
enum { OCTAVE_BITS = 5 };

static const char *const distributions[] = {"uniform", "exponential", NULL};

typedef struct alloctest_state {
    bool exponential;   /* whether octaves are drawn first */
    uint32_t least_log; /* exponential: logarithm of the least size, in 1/2^27 of an octave */
    uint64_t log_count; /* exponential: as many steps up to the largest */
} alloctest_state;

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
                                               : hz_sizes_draw(p->sizes, bits));
}

static void begin(hz_player *p)
{
    const int64_t *values = p->run->values;
    alloctest_state *state = p->state;
    state->exponential = values[SIZES] == EXPONENTIAL;
    state->least_log = log_of(values[MIN_SIZE]);
    state->log_count = log_of(values[MAX_SIZE]) - state->least_log + UINT64_C(1);
    for (size_t i = 0; i < p->slot_count; i++)
        p->slots[i] = new_block(p, state, hz_high(hz_random(&p->rng)));
}

static size_t step(hz_player *p, size_t most)
{
    const alloctest_state *state = p->state;
    hz_block *const slots = p->slots;
    for (size_t i = 0; i < most; i++) {
        const uint64_t draw = hz_random(&p->rng);
        hz_block *item = &slots[hz_scale(hz_low(draw), p->slot_count)];
        hz_give(p, *item);
        *item = new_block(p, state, hz_high(draw));
    }
    return most;
}

const hz_workload hz_workload_alloctest = {
    .name = "alloctest",
    .doc = "a big array of live blocks of uniform or exponential sizes, replaced at random. An "
           "operation is one replacement",
    .source = "the alloc-test of ITHare, as in mimalloc-bench",
    .params =
        {
            HZ_SIZE_PARAMS(8, 2048),
            {"sizes", EXPONENTIAL, 0, 0, distributions, "",
             "uniform, or exponential: every doubling of the size is drawn equally often"},
            {"items", 16384, 1, 1 << 24, NULL, "blocks", "live blocks of a thread"},
        },
    .state_bytes = sizeof(alloctest_state),
    .slots = "items",
    .begin = begin,
    .step = step,
};
