/*
 * app: sizes as applications have them, mostly small, sometimes large; now and then a block grows.
 */
#include "blocks.h"

enum { SMALL_SHARE = 80, MIDDLE_SHARE = 15, GROWTH = 16, GROWTH_EVERY = 64 };

static const hz_sizes small = {16, 256 - 16 + 1};
static const hz_sizes middle = {257, 2048 - 257 + 1};
static const hz_sizes large = {2049, 32768 - 2049 + 1};

typedef struct app_state {
    uint32_t past; /* operations since a block grew */
} app_state;

static uint32_t draw_size(hz_player *p, uint32_t bits)
{
    const uint32_t kind = hz_scale(hz_low(hz_random(&p->rng)), 100);
    if (kind < SMALL_SHARE) return hz_sizes_draw(small, bits);
    return hz_sizes_draw(kind < SMALL_SHARE + MIDDLE_SHARE ? middle : large, bits);
}

/* Whether it is time for a block to grow. */
static bool growth_is_due(app_state *state)
{
    if (++state->past < GROWTH_EVERY) return false;
    state->past = 0;
    return true;
}

static void play(hz_player *p, app_state *state)
{
    const uint64_t draw = hz_random(&p->rng);
    hz_block *slot = &p->slots[hz_scale(hz_low(draw), p->slot_count)];
    const bool growth = growth_is_due(state);
    if (slot->at == NULL) {
        *slot = hz_take_block(p, draw_size(p, hz_high(draw)));
    } else if (growth) {
        *slot = hz_regrow(p, *slot, slot->size + GROWTH);
    } else {
        hz_give(p, *slot);
        slot->at = NULL;
    }
}

HZ_PLAY_EACH(play)

const hz_workload hz_workload_app = {
    .name = "app",
    .doc =
        "random slots are allocated and freed with the sizes of applications: 80 % 16..256, 15 % "
        "257..2048, 5 % 2049..32768 bytes; every 64th operation lets a block grow by 16. An "
        "operation is one malloc, realloc or free",
    .source = "the application mix of the hakozuna tables",
    .params = {{"ws", 400, 1, 1 << 24, NULL, "slots",
                "slots of a thread, of which half are full on average"}},
    .settings = {{"wide", "the large working set of the hakozuna tables", "ws=8192"}},
    .state_bytes = sizeof(app_state),
    .slots = "ws",
    .step = step,
};
