/*
 * large: churn of big buffers, every page of which is written and read. Bound by page faults,
 * unless the allocator keeps the pages.
 */
#include "blocks.h"

typedef struct large_state {
    unsigned octaves;  /* doublings between the smallest size and the largest */
    hz_block *present; /* the slot whose new buffer is being written */
    uint32_t at;       /* where its next 4 KiB begin */
    uint32_t sum;      /* of what was read: a result that is used */
} large_state;

static void begin(hz_player *p)
{
    large_state *state = p->state;
    const uint64_t top = p->sizes.least + p->sizes.count - 1;
    for (uint64_t size = p->sizes.least; 2 * size <= top; size *= 2) state->octaves++;
}

/* Every doubling of the size is equally likely, and so is every size within it. */
static uint32_t draw_size(hz_player *p, const large_state *state)
{
    const uint64_t draw = hz_random(&p->rng);
    const uint64_t base = (uint64_t)p->sizes.least
                          << hz_scale(hz_low(draw), state->octaves + UINT64_C(1));
    const uint64_t top = p->sizes.least + p->sizes.count - 1;
    const uint64_t room = 2 * base <= top ? base : top - base + 1;
    return (uint32_t)(base + hz_scale(hz_high(draw), room));
}

/* Replaces the buffer of a random slot; the new one is written by the operations that follow. */
static void replace(hz_player *p, large_state *state)
{
    hz_block *slot = &p->slots[hz_scale(hz_low(hz_random(&p->rng)), p->slot_count)];
    if (slot->at != NULL) {
        const volatile unsigned char *bytes = slot->at;
        for (uint32_t at = 0; at < slot->size; at += HZ_TOUCH_STEP) state->sum += bytes[at];
        hz_give(p, *slot);
    }
    const uint32_t size = draw_size(p, state);
    *slot = (hz_block){hz_take_untouched(p, size), size};
    state->present = slot;
    state->at = 0;
}

/* Writes into the next HZ_TOUCH_STEP bytes. */
static void write_part(large_state *state)
{
    unsigned char *part = (unsigned char *)state->present->at + state->at;
    const uint32_t left = state->present->size - state->at;
    const uint32_t size = left < HZ_TOUCH_STEP ? left : HZ_TOUCH_STEP;
    hz_touch_block(part, size);
    state->at += size;
}

static void play(hz_player *p, large_state *state)
{
    if (state->present == NULL || state->at == state->present->size) replace(p, state);
    write_part(state);
}

HZ_PLAY_EACH(play)

const hz_workload hz_workload_large = {
    .name = "large",
    .doc = "buffers of 64 KiB to 32 MiB are replaced at random, written and read 4 KiB at a time. "
           "An operation is 4 KiB of a buffer",
    .source = "malloc-large of mimalloc-bench",
    .params =
        {
            {"min_size", 64 << 10, HZ_TOUCH_STEP, 1 << 30, NULL, "bytes", "smallest buffer"},
            {"max_size", 32 << 20, HZ_TOUCH_STEP, 1 << 30, NULL, "bytes", "largest buffer"},
            {"slots", 2, 1, 1 << 16, NULL, "buffers", "live buffers of a thread"},
        },
    .settings = {{"malloc-large", "the buffers of mimalloc-bench's malloc-large",
                  "min_size=5242880 max_size=26214400 slots=20"}},
    .state_bytes = sizeof(large_state),
    .slots = "slots",
    .begin = begin,
    .step = step,
};
