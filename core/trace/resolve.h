/*
 * From addresses to blocks: calls come in the order of their time, and steps come out.
 *
 * A call about an address where no block lives is counted and left out: the block is older than the
 * recording. A block that is given where another one lives ends that one: its free was not seen.
 */
#ifndef HZ_TRACE_RESOLVE_H
#define HZ_TRACE_RESOLVE_H

#include <stdbool.h>

#include "lives.h"
#include "trace_format.h"

/*
 * Steps: all operations of a program in the order of their time, each linked with the one that gave
 * its block and the one that ended it. Between whatever was read and the trace that is written.
 */
typedef struct hz_step {
    uint64_t time;       /* in the unit of its source */
    uint64_t size;       /* bytes asked for; of a spawn and a join the thread */
    uint64_t from;       /* the step that gave the block which this one ends, or HZ_NO_STEP */
    uint64_t to;         /* the step that ends the block which this one gives, or HZ_NO_STEP */
    uint32_t thread;     /* which thread did it */
    uint8_t kind;        /* hz_trace_kind; 0: it was taken back and is not there */
    uint8_t align_shift; /* log2 of the alignment asked for, or 0 */
} hz_step;

/* A list of them in a file that has no name, so that it may be larger than the memory. */
typedef struct hz_steps {
    hz_step *at;    /* all of them */
    uint64_t count; /* how many */
    uint64_t room;  /* for how many there is room */
    int fd;         /* the file */
} hz_steps;

/* What is known of a thread. */
typedef struct hz_actor {
    bool has_begun;                 /* it has a number */
    uint32_t number;                /* in the trace: threads are numbered as they begin */
    uint64_t last;                  /* its latest step */
    bool is_moving;                 /* it is inside realloc */
    uint64_t moving_from;           /* the step that gave the block; HZ_NO_STEP: unknown */
    uint64_t moving_time;           /* when that call began */
    uint64_t moving_address;        /* of the block */
    char name[HZ_TRACE_NAME_BYTES]; /* zeros behind it; may be empty */
} hz_actor;

typedef struct hz_resolver {
    hz_steps steps;        /* what comes out */
    hz_lives lives;        /* the blocks that live now */
    hz_actor *actors;      /* by the number of a thread in the source */
    uint32_t actor_room;   /* how many there is room for */
    uint32_t thread_count; /* threads that have begun */
    uint32_t latest;       /* number of the thread that did the latest step */
    uint64_t unknown;      /* calls about blocks that do not live */
    uint64_t overlapping;  /* blocks that were given where another one lives */
} hz_resolver;

/* A call that gives, moves or ends a block; a spawn or a join. */
typedef struct hz_call {
    uint32_t thread;     /* its number in the source */
    uint8_t kind;        /* hz_trace_kind */
    uint8_t align_shift; /* log2 of the alignment, or 0 */
    uint64_t time;       /* in the unit of the source */
    uint64_t address;    /* of the block */
    uint64_t size;       /* bytes asked for; of a spawn and a join the thread */
} hz_call;

/* Where a source numbers its blocks, number times this stands for the address. */
enum { HZ_ADDRESS_UNIT = 16 };

/* `beside`: the file for which all this is done; temporary ones stand beside it. */
void hz_resolver_make(hz_resolver *resolver, const char *beside);
void hz_resolver_drop(hz_resolver *resolver);

/* What is known of a thread of the source. */
hz_actor *hz_resolver_actor(hz_resolver *resolver, uint32_t thread);

/* A call that is over, a spawn or a join. */
void hz_resolve_call(hz_resolver *resolver, const hz_call *call);

/* A realloc begins, and succeeds or fails. */
void hz_resolve_moving(hz_resolver *resolver, const hz_call *call);
void hz_resolve_moved(hz_resolver *resolver, const hz_call *call);
void hz_resolve_stayed(hz_resolver *resolver, const hz_call *call);

/* A spawn or a join, of a thread that need not have begun; returns its step. */
uint64_t hz_resolve_thread(hz_resolver *resolver, const hz_call *call);

/* Takes back what cannot be: spawns and joins of threads that did nothing, joins before their end.
 */
void hz_resolver_finish(hz_resolver *resolver);

/* Says on stderr which calls are left out, and which frees were not seen. */
void hz_resolver_tell(const hz_resolver *resolver, const char *program);

#endif
