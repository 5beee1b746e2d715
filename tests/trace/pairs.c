/*
 * Reads a trace of stress.c and prints what that printed: `pairs TRACE`. The digests agree only if
 * every call is there, in the order of its thread, with its size, and with the right block.
 */
#include <stdio.h>
#include <stdlib.h>

#include "arguments.h"
#include "digest.h"
#include "walk.h"

/* A thread of stress.c. */
typedef struct worker {
    uint32_t given;
    uint64_t digest;
} worker;

typedef struct pairing {
    worker workers[THREADS_MAX];
    uint32_t *worker_of;  /* by thread of the trace: its number in stress.c plus one, or 0 */
    uint64_t *mark_of;    /* its mark, until it is freed */
    identity *identities; /* by number of block */
    uint64_t room;        /* how many */
    uint32_t count;       /* workers seen */
} pairing;

static identity *identity_of(pairing *p, uint64_t block)
{
    if (block >= p->room) {
        p->room = 2 * block + 1024;
        p->identities = realloc(p->identities, p->room * sizeof *p->identities);
        if (p->identities == NULL) hz_fail("no memory");
    }
    return &p->identities[block];
}

/* A thread begins with its mark; whether that is what happens here. */
static bool take_mark(pairing *p, const hz_ordered *next)
{
    const hz_trace_operation *operation = &next->operation;
    const bool gives = hz_trace_gives(operation->kind);
    if (p->worker_of[next->thread] == 0) {
        const uint64_t number = operation->size - MARK_BYTES;
        if (gives && next->thread != 0 && number < THREADS_MAX) {
            p->worker_of[next->thread] = (uint32_t)number + 1;
            p->mark_of[next->thread] = next->block;
            p->count++;
        }
        return true;
    }
    if (hz_trace_ends(operation->kind) && p->mark_of[next->thread] == next->block) {
        p->mark_of[next->thread] = 0;
        return true;
    }
    return false;
}

static void digest(pairing *p, const hz_ordered *next)
{
    const hz_trace_operation *operation = &next->operation;
    if (!hz_trace_calls(operation->kind) || take_mark(p, next)) return;
    const uint32_t number = p->worker_of[next->thread] - 1;
    worker *w = &p->workers[number];
    identity *of = identity_of(p, next->block);
    if (!hz_trace_gives(operation->kind)) {
        const uint64_t kind = hz_trace_ends(operation->kind) ? DIGEST_END : DIGEST_MOVE;
        w->digest = mix(mix(mix(w->digest, kind), of->thread), of->call);
    }
    if (!hz_trace_ends(operation->kind)) {
        *of = (identity){number, w->given++};
        w->digest = mix(mix(w->digest, DIGEST_GIVE), operation->size);
    }
}

int main(int argc, char **argv)
{
    static pairing p;
    hz_trace trace;
    hz_ordered next;
    if (argc != 2) hz_refuse("want a trace");
    const hz_file_bytes file = hz_read_file(argv[1]);
    hz_trace_read(&trace, argv[1], &file);
    p.worker_of = calloc(trace.header->thread_count, sizeof *p.worker_of);
    p.mark_of = calloc(trace.header->thread_count, sizeof *p.mark_of);
    if (p.worker_of == NULL || p.mark_of == NULL) hz_fail("no memory");
    hz_walk *walk = hz_walk_make(&trace);
    while (hz_walk_next(walk, &next)) digest(&p, &next);
    for (uint32_t i = 0; i < p.count; i++)
        (void)printf("%u %u %016llx\n", i, p.workers[i].given,
                     (unsigned long long)p.workers[i].digest);
    return 0;
}
