/*
 * kv: a key-value server. SET formats a new string and frees the old one, GET reads it, LPUSH and
 * LPOP work on a list of nodes and strings: 70, 20, 5 and 5 % of the requests.
 */
#include "blocks.h"

enum { SET_SHARE = 70, GET_SHARE = 20, PUSH_SHARE = 5 };
enum { NODES = 1000 }; /* most of a list */

/* A node of the list; it and its string are blocks of their own. */
typedef struct node {
    struct node *next; /* the one that was pushed before */
    hz_block string;   /* its value */
} node;

typedef struct kv_state {
    uint32_t list_count; /* nodes of the list */
    node *list;          /* the last one that was pushed */
    uint32_t sum;        /* of what was read: a result that is used */
} kv_state;

/* A string "value:0123abcd", padded to its drawn length. */
static hz_block new_string(hz_player *p, uint32_t bits)
{
    static const char digits[] = "0123456789abcdef";
    const hz_block string = hz_take_block(p, hz_sizes_draw(p->sizes, bits));
    char *text = string.at;
    memcpy(text, "value:", 6);
    for (int i = 0; i < 8; i++) text[6 + i] = digits[(bits >> (28 - 4 * i)) & 15];
    memset(text + 14, ' ', string.size - 15);
    text[string.size - 1] = '\0';
    return string;
}

static void store_value(hz_player *p, uint32_t key, uint32_t bits)
{
    const hz_block old = p->slots[key];
    p->slots[key] = new_string(p, bits);
    if (old.at != NULL) hz_give(p, old);
}

static void read_value(const hz_player *p, kv_state *state, uint32_t key)
{
    const hz_block value = p->slots[key];
    if (value.at != NULL) state->sum += (uint32_t)strlen(value.at);
}

static void pop(hz_player *p, kv_state *state)
{
    node *last = state->list;
    if (last == NULL) return;
    state->list = last->next;
    state->list_count--;
    hz_give(p, last->string);
    hz_give(p, (hz_block){last, sizeof *last});
}

/* A full list loses a node first. */
static void push(hz_player *p, kv_state *state, uint32_t bits)
{
    if (state->list_count == NODES) pop(p, state);
    node *first = hz_take(p, sizeof *first);
    *first = (node){state->list, new_string(p, bits)};
    state->list = first;
    state->list_count++;
}

static void play(hz_player *p, kv_state *state)
{
    const uint64_t draw = hz_random(&p->rng);
    const uint32_t kind = hz_scale(hz_low(hz_random(&p->rng)), 100);
    const uint32_t key = hz_scale(hz_low(draw), p->slot_count);
    if (kind < SET_SHARE)
        store_value(p, key, hz_high(draw));
    else if (kind < SET_SHARE + GET_SHARE)
        read_value(p, state, key);
    else if (kind < SET_SHARE + GET_SHARE + PUSH_SHARE)
        push(p, state, hz_high(draw));
    else
        pop(p, state);
}

HZ_PLAY_EACH(play)

static void end(hz_player *p)
{
    kv_state *state = p->state;
    while (state->list != NULL) pop(p, state);
}

const hz_workload hz_workload_kv = {
    .name = "kv",
    .doc = "key-value server: SET, GET, LPUSH, LPOP of small strings, 70, 20, 5 and 5 % of the "
           "requests. An operation is one request to the server",
    .source = "the redis model of the hakmem tables (16..256 bytes)",
    .params =
        {
            {"min_size", 16, 16, 1 << 20, NULL, "bytes", "shortest string"},
            {"max_size", 256, 16, 1 << 20, NULL, "bytes", "longest string"},
            {"keys", 10000, 1, 1 << 24, NULL, "keys", "keys of a thread's table"},
        },
    .state_bytes = sizeof(kv_state),
    .slots = "keys",
    .step = step,
    .end = end,
};
