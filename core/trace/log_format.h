/*
 * The log: what passes from a recorded program to hz-record, and the file that hz-record writes.
 * It holds addresses and stamps as they were; `hz-trace` makes a trace of it.
 *
 * Glossary:
 *   stamp   a reading of the processor's time-stamp counter, or nanoseconds where it cannot be used
 *   event   what one call wrote into the log: a head of 8 bytes, and up to 8 more
 *   pool    memory that all recorded processes and hz-record share: a header and leaves
 *   leaf    a part of the pool that one thread fills with events, and hz-record empties
 *   image   one program in one process: an exec and a fork each start another
 *   frame   what one thread logged, in the file: the bytes of a leaf, or of a part of it
 *
 * A free is stamped before it happens and an allocation after it. So the lives of one address never
 * overlap, whichever threads they belong to, and nothing has to be looked up while recording.
 */
#ifndef HZ_LOG_FORMAT_H
#define HZ_LOG_FORMAT_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trace_format.h"

/* The variable that tells a recorder where its pool is, or that it is to sleep. */
#define HZ_RECORD_VARIABLE "HZ_RECORD"
#define HZ_RECORD_ASLEEP "asleep"

enum { HZ_LOG_VERSION = 1 };

/* ---- events --------------------------------------------------------------------------------- */

/*
 * The kinds of an event: those of hz_trace_kind that give or end a block, and these. Numbers above
 * 23 have another meaning than in a trace.
 */
enum {
    HZ_LOG_MOVED = HZ_TRACE_REALLOC, /* realloc returned this block, of this size */
    HZ_LOG_MOVING = 24,              /* realloc was called for this block */
    HZ_LOG_STAYED = 25,              /* it failed, and the block is as it was */
    HZ_LOG_CREATING = 26,            /* pthread_create was called */
    HZ_LOG_CREATED = 27,             /* it made the thread of this pthread_t; 0: none */
    HZ_LOG_JOINED = 28,              /* the thread of this pthread_t has ended */
    HZ_LOG_SELF = 29,                /* this thread's own pthread_t; its first event */
    HZ_LOG_TIME = 31, /* another form: everything above the kind counts to the stamp */
};

/*
 * The bits of a head, lowest first: kind, which size follows, whether more of the delta follows,
 * the delta of the stamp, and the address without its low bits. The size comes next, in 0, 1, 2 or
 * 6 bytes, then 2 more bytes of the delta. The size of an aligned kind is shifted left and
 * has the log2 of the alignment in its low bits.
 */
enum {
    HZ_LOG_KIND_BITS = 5,
    HZ_LOG_SIZE_CODE_AT = HZ_LOG_KIND_BITS,
    HZ_LOG_MORE_AT = HZ_LOG_SIZE_CODE_AT + 2,
    HZ_LOG_DELTA_AT = HZ_LOG_MORE_AT + 1,
    HZ_LOG_DELTA_BITS = 12,
    HZ_LOG_DELTA_MORE_BITS = 16,
    HZ_LOG_ADDRESS_AT = HZ_LOG_DELTA_AT + HZ_LOG_DELTA_BITS,
    HZ_LOG_ADDRESS_SHIFT = 3, /* every block starts at a multiple of 8 */
    HZ_LOG_ALIGN_BITS = 6,
    HZ_LOG_EVENT_MAX_BYTES = 2 * 8 + 8, /* with an HZ_LOG_TIME in front of it */
};
static_assert(HZ_LOG_ADDRESS_AT + 47 - HZ_LOG_ADDRESS_SHIFT == 64, "a head is full");

/* How many bytes a size takes, by its code. */
static inline unsigned hz_log_size_bytes(unsigned code)
{
    return code == 3 ? 6 : code;
}

/* Whether this kind of event has an alignment in its size. */
static inline bool hz_log_is_aligned(unsigned kind)
{
    return (kind >= HZ_TRACE_ALIGNED_ALLOC && kind <= HZ_TRACE_POSIX_MEMALIGN) ||
           kind == HZ_TRACE_NEW_ALIGNED || kind == HZ_TRACE_NEW_ALIGNED_NOTHROW;
}

/* ---- the pool ------------------------------------------------------------------------------- */

enum {
    HZ_POOL_MAGIC = 0x6c70687a, /* "zhpl" */
    HZ_LEAF_BYTES = 32 * 1024,
    HZ_LEAF_COUNT = 4096,
    HZ_POOL_BITS = 64, /* of a word of `free_leaves` */
    HZ_POOL_HEAD_BYTES = 4096,
};

/* Which clock stamps come from. */
enum { HZ_CLOCK_COUNTER = 1, HZ_CLOCK_RAW = 2 };

/* Why a recording ended before it was told to; `ended` of the pool. */
enum {
    HZ_POOL_OPEN = 0,
    HZ_POOL_STOPPED = 1,  /* hz-record was told to end, or the program ended */
    HZ_POOL_TOO_SLOW = 2, /* a thread waited two seconds for a leaf: the disk is too slow */
    HZ_POOL_DISK = 3,     /* hz-record could not write */
};

/* What the recorded processes and hz-record tell each other. */
typedef struct hz_pool {
    uint32_t magic;   /* HZ_POOL_MAGIC */
    uint32_t version; /* HZ_LOG_VERSION */
    uint32_t clock;   /* HZ_CLOCK_... */
    int32_t recorder; /* pid of hz-record */
    _Alignas(64)
        atomic_uint ended;    /* HZ_POOL_OPEN, or why there is nothing to be logged any more */
    atomic_uint image_count;  /* images so far */
    atomic_uint thread_count; /* threads so far, of all images */
    atomic_ullong lost;       /* events of signal handlers that interrupted an event */
    _Alignas(64)
        atomic_uint full; /* leaves that threads have handed over; hz-record sleeps on it */
    _Alignas(64) atomic_uint freed; /* leaves that hz-record has given back; threads sleep on it */
    atomic_uint is_scarce;          /* a thread waits for a leaf */
    _Alignas(64) atomic_ullong free_leaves[HZ_LEAF_COUNT / HZ_POOL_BITS]; /* a bit for each */
} hz_pool;
static_assert(sizeof(hz_pool) <= HZ_POOL_HEAD_BYTES, "the header has room for it");

/* Whose a leaf is; `state` of it. */
enum {
    HZ_LEAF_FREE = 0,  /* its bit is set, or soon will be */
    HZ_LEAF_OWNED = 1, /* a thread fills it */
    HZ_LEAF_FULL = 2,  /* that thread has left it to hz-record */
};

/* The bytes of a thread, in front of its events. */
typedef struct hz_leaf_head {
    atomic_uint state; /* HZ_LEAF_... */
    uint32_t image;    /* of the thread */
    uint32_t thread;   /* number of the thread among all of the pool */
    uint32_t number;   /* of this leaf among the thread's, from 0 */
    int32_t pid;       /* the thread's process */
    int32_t tid;       /* the thread */
    atomic_uint used;  /* bytes of events that are complete */
} hz_leaf_head;

typedef struct hz_leaf {
    _Alignas(64) hz_leaf_head head;
    unsigned char events[HZ_LEAF_BYTES - 64];
} hz_leaf;
static_assert(sizeof(hz_leaf) == HZ_LEAF_BYTES, "leaves stand side by side");

#define HZ_POOL_BYTES (HZ_POOL_HEAD_BYTES + (size_t)HZ_LEAF_COUNT * HZ_LEAF_BYTES)

/* The leaf with this index. */
static inline hz_leaf *hz_pool_leaf(hz_pool *pool, size_t index)
{
    return (hz_leaf *)(void *)((char *)pool + HZ_POOL_HEAD_BYTES) + index;
}

/* ---- the bell: how a recorder that sleeps is found and woken -------------------------------- */

/* A System V segment without a key, in the memory of each process whose recorder sleeps. */
enum { HZ_BELL_MAGIC = 0x6c62687a, HZ_BELL_PATH_BYTES = 64 }; /* "zhbl" */

typedef struct hz_bell {
    uint32_t magic;    /* HZ_BELL_MAGIC */
    uint32_t version;  /* HZ_LOG_VERSION */
    atomic_uint rings; /* how often hz-record has rung; the pool is in `pool_path` */
    char pool_path[HZ_BELL_PATH_BYTES]; /* a file that can be opened and mapped */
} hz_bell;

/* ---- the file ------------------------------------------------------------------------------- */

#define HZ_LOG_MAGIC "HZRECORD"

/* At its start. */
typedef struct hz_log_header {
    char magic[8];     /* HZ_LOG_MAGIC, without its zero byte */
    uint32_t version;  /* HZ_LOG_VERSION */
    uint32_t clock;    /* HZ_CLOCK_... */
    uint64_t stamp;    /* the clock when the recording began */
    uint64_t ns;       /* and the nanoseconds of CLOCK_MONOTONIC at that moment */
    uint64_t is_woken; /* 1: the program ran before the recording began */
    uint64_t checksum; /* of the header with 0 in this field */
} hz_log_header;
static_assert(sizeof(hz_log_header) == 48, "the header is part of the format");

enum {
    HZ_FRAME_MAGIC = 0x6d66687a, /* "zhfm" */
    HZ_FRAME_EVENTS = 1,         /* the next events of a thread */
    HZ_FRAME_IMAGE = 2,          /* the words of the command line of an image, zeros between them */
    HZ_FRAME_END = 3,            /* an hz_log_end: the recording is complete */
    HZ_FRAME_CLOCK = 4,          /* an hz_log_end before the end: how fast the clock is */
};

/* In front of each part of the file; zeros follow it up to a multiple of 8 bytes. */
typedef struct hz_log_frame {
    uint32_t magic;                 /* HZ_FRAME_MAGIC */
    uint32_t kind;                  /* HZ_FRAME_... */
    uint32_t bytes;                 /* that follow */
    uint32_t image;                 /* of the pool */
    uint32_t thread;                /* of the pool */
    uint32_t number;                /* of the leaf among the thread's */
    uint32_t start;                 /* of these bytes in the leaf */
    int32_t pid;                    /* of the image */
    char name[HZ_TRACE_NAME_BYTES]; /* of the thread or the image; empty where not looked at */
    uint64_t checksum;              /* of this struct with 0 in this field, and of what follows */
} hz_log_frame;
static_assert(sizeof(hz_log_frame) == 56, "the frame is part of the format");

/* What the last frame holds, and what is written from time to time. */
typedef struct hz_log_end {
    uint64_t stamp; /* the clock when this was written */
    uint64_t ns;    /* and the nanoseconds of CLOCK_MONOTONIC at that moment */
    uint64_t lost;  /* as in the pool */
    uint64_t why;   /* HZ_POOL_... */
} hz_log_end;

#endif
