/*
 * The trace: what a program did with its allocator, one stream of operations for each thread, made
 * to be replayed. README.md of this folder says why it is as it is.
 *
 * Glossary:
 *   operation  one call of the program, or a step between two threads. One word, wide ones two
 *   slot       where a thread keeps the address of a live block; each thread has its own, from 0
 *   cell       where a block goes from one thread to another; the only thing that threads share
 *   chunk      up to HZ_TRACE_CHUNK_WORDS words of one thread, with a checksum
 *   place      where a chunk stands in the file
 *   directory  the threads, the places and the notes, at the end of the file
 *
 * The file: hz_trace_header, the chunks in the order of their time, the directory, with
 * nothing between them. Everything stands at a multiple of 8 bytes and is little-endian.
 */
#ifndef HZ_TRACE_FORMAT_H
#define HZ_TRACE_FORMAT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HZ_TRACE_MAGIC "HZTRACE\n"

enum {
    HZ_TRACE_VERSION = 1,
    HZ_TRACE_CHUNK_MAGIC = 0x6b63687a, /* "zhck" */
    HZ_TRACE_CHUNK_WORDS = 8192,
    HZ_TRACE_NAME_BYTES = 16,
};

/* What an operation is. The numbers are part of the format. */
typedef enum hz_trace_kind {
    /* These give a block. */
    HZ_TRACE_MALLOC = 1,
    HZ_TRACE_CALLOC = 2, /* `size` is count times size */
    HZ_TRACE_ALIGNED_ALLOC = 3,
    HZ_TRACE_MEMALIGN = 4,
    HZ_TRACE_POSIX_MEMALIGN = 5,
    HZ_TRACE_VALLOC = 6,
    HZ_TRACE_PVALLOC = 7,
    HZ_TRACE_NEW = 8, /* C++'s operators; those of arrays are not told apart */
    HZ_TRACE_NEW_NOTHROW = 9,
    HZ_TRACE_NEW_ALIGNED = 10,
    HZ_TRACE_NEW_ALIGNED_NOTHROW = 11,
    /* Takes the block of a slot and puts the new one there. Never with a cell. */
    HZ_TRACE_REALLOC = 15,
    /* These end a block. `size` is what it was asked for with; sized forms pass it on. */
    HZ_TRACE_FREE = 16,
    HZ_TRACE_FREE_SIZED = 17,
    HZ_TRACE_FREE_ALIGNED_SIZED = 18,
    HZ_TRACE_DELETE = 19,
    HZ_TRACE_DELETE_SIZED = 20,
    HZ_TRACE_DELETE_ALIGNED = 21,
    HZ_TRACE_DELETE_SIZED_ALIGNED = 22,
    /* These call nothing. */
    HZ_TRACE_FETCH = 24, /* waits for a block in cell `size` and moves it to slot `operand` */
    HZ_TRACE_HAND = 25,  /* waits until cell `size` is empty and moves slot `operand` there */
    HZ_TRACE_SPAWN = 26, /* thread `operand` may start now */
    HZ_TRACE_JOIN = 27,  /* waits until thread `operand` has ended */
} hz_trace_kind;

/* An operation, unpacked. */
typedef struct hz_trace_operation {
    hz_trace_kind kind;
    bool is_cell;        /* `operand` is a cell, not a slot */
    uint8_t align_shift; /* log2 of the alignment asked for; 0: none was */
    uint32_t operand;    /* the slot or cell that the block comes from or goes to; or a thread */
    uint64_t size;       /* bytes asked for; see the kinds */
    uint64_t delta_ns;   /* since the operation before it in this thread, or the chunk's start */
} hz_trace_operation;

/*
 * The bits of a word, lowest first. A delta is its digits shifted left by its exponent. A field
 * that has too few bits has its high ones in the second word; an alignment stands only there.
 */
enum {
    HZ_TRACE_KIND_BITS = 5,
    HZ_TRACE_CELL_BITS = 1,
    HZ_TRACE_WIDE_BITS = 1,
    HZ_TRACE_EXPONENT_BITS = 4,
    HZ_TRACE_DIGITS_BITS = 11,
    HZ_TRACE_OPERAND_BITS = 22,
    HZ_TRACE_SIZE_BITS = 20,

    HZ_TRACE_CELL_AT = HZ_TRACE_KIND_BITS,
    HZ_TRACE_WIDE_AT = HZ_TRACE_CELL_AT + HZ_TRACE_CELL_BITS,
    HZ_TRACE_EXPONENT_AT = HZ_TRACE_WIDE_AT + HZ_TRACE_WIDE_BITS,
    HZ_TRACE_DIGITS_AT = HZ_TRACE_EXPONENT_AT + HZ_TRACE_EXPONENT_BITS,
    HZ_TRACE_OPERAND_AT = HZ_TRACE_DIGITS_AT + HZ_TRACE_DIGITS_BITS,
    HZ_TRACE_SIZE_AT = HZ_TRACE_OPERAND_AT + HZ_TRACE_OPERAND_BITS,

    /* The second word. */
    HZ_TRACE_SIZE_MORE_BITS = 28,
    HZ_TRACE_OPERAND_MORE_BITS = 10,
    HZ_TRACE_ALIGN_BITS = 6,
    HZ_TRACE_DIGITS_MORE_BITS = 20,

    HZ_TRACE_OPERAND_MORE_AT = HZ_TRACE_SIZE_MORE_BITS,
    HZ_TRACE_ALIGN_AT = HZ_TRACE_OPERAND_MORE_AT + HZ_TRACE_OPERAND_MORE_BITS,
    HZ_TRACE_DIGITS_MORE_AT = HZ_TRACE_ALIGN_AT + HZ_TRACE_ALIGN_BITS,
};
static_assert(HZ_TRACE_SIZE_AT + HZ_TRACE_SIZE_BITS == 64, "a word is full");
static_assert(HZ_TRACE_DIGITS_MORE_AT + HZ_TRACE_DIGITS_MORE_BITS == 64, "a word is full");

/* The largest values that fit into two words. */
#define HZ_TRACE_SIZE_MAX ((UINT64_C(1) << (HZ_TRACE_SIZE_BITS + HZ_TRACE_SIZE_MORE_BITS)) - 1)
#define HZ_TRACE_DELTA_MAX_NS                                                                      \
    (((UINT64_C(1) << (HZ_TRACE_DIGITS_BITS + HZ_TRACE_DIGITS_MORE_BITS)) - 1)                     \
     << ((1 << HZ_TRACE_EXPONENT_BITS) - 1))

/* ---- the file ------------------------------------------------------------------------------- */

/* What a trace may say of itself, in `flags`. */
enum {
    HZ_TRACE_HAS_TIME = 1, /* the deltas are measured; else they only tell the order */
    HZ_TRACE_IS_PART = 4,  /* it begins or ends in the middle of its program's life */
};

/* At the start of the file. */
typedef struct hz_trace_header {
    char magic[8];             /* HZ_TRACE_MAGIC, without its zero byte */
    uint32_t version;          /* HZ_TRACE_VERSION; a reader refuses any other */
    uint32_t flags;            /* HZ_TRACE_HAS_... */
    uint64_t file_bytes;       /* length of the file; a shorter one was cut */
    uint64_t directory_offset; /* where the directory starts */
    uint32_t thread_count;     /* of the directory's threads; numbered from 0 */
    uint32_t chunk_count;      /* of the directory's places */
    uint32_t cell_count;       /* cells are numbered from 0; those of two pairs of threads never
                                  share a group of 8 that starts at a multiple of 8 */
    uint32_t notes_bytes;      /* length of the notes, at most 1 MiB */
    uint64_t call_count;       /* operations that call the allocator */
    uint64_t handed_count;     /* blocks that go through a cell */
    uint64_t duration_ns;      /* from the first operation of the first thread to the last one */
    uint64_t peak_bytes;       /* most bytes, as asked for, that were live at one time */
    uint64_t peak_blocks;      /* most blocks that were live at one time */
    uint64_t checksum;         /* of the header with 0 in this field */
} hz_trace_header;
static_assert(sizeof(hz_trace_header) == 96, "the header is part of the format");

/* In front of the words of a chunk. */
typedef struct hz_trace_chunk {
    uint32_t magic;      /* HZ_TRACE_CHUNK_MAGIC */
    uint32_t thread;     /* whose operations these are */
    uint32_t number;     /* of this chunk among those of its thread, from 0 */
    uint32_t word_count; /* words that follow, 1..HZ_TRACE_CHUNK_WORDS; an operation is whole */
    uint64_t start_ns;   /* from the start of the trace: what the first delta counts from */
    uint64_t checksum;   /* of this struct with 0 in this field, and of the words */
} hz_trace_chunk;
static_assert(sizeof(hz_trace_chunk) == 32, "the chunk is part of the format");

/* A thread, in the directory. */
typedef struct hz_trace_thread {
    uint64_t start_ns;        /* of its first operation, from the start of the trace */
    uint64_t end_ns;          /* of its last operation */
    uint64_t word_count;      /* in all of its chunks */
    uint64_t call_count;      /* its operations that call the allocator */
    uint32_t slot_count;      /* slots that it uses */
    uint32_t chunk_count;     /* its chunks; 0: it did nothing */
    uint32_t first_place;     /* its first place; the others follow it in order */
    uint32_t waits_for_spawn; /* 1: it starts at the HZ_TRACE_SPAWN that names it; 0: at once */
    char name[HZ_TRACE_NAME_BYTES]; /* of the thread; zeros behind it; may be empty */
} hz_trace_thread;
static_assert(sizeof(hz_trace_thread) == 64, "the thread is part of the format");

/* Where a chunk stands. Places are sorted by thread, then by number. */
typedef struct hz_trace_place {
    uint64_t offset;     /* of its hz_trace_chunk, from the start of the file */
    uint32_t thread;     /* as in the chunk */
    uint32_t word_count; /* as in the chunk */
} hz_trace_place;
static_assert(sizeof(hz_trace_place) == 16, "the place is part of the format");

/*
 * The directory: thread_count hz_trace_thread, chunk_count hz_trace_place, notes_bytes of notes (a
 * JSON object for people and `hztune trace info`; a replay reads none of it), zeros up to a
 * multiple of 8, and the uint64_t checksum of all that.
 */

/* ---- packing and unpacking ------------------------------------------------------------------ */

/* Whether there is such a kind. */
static inline bool hz_trace_is_known(hz_trace_kind kind)
{
    return (kind >= HZ_TRACE_MALLOC && kind <= HZ_TRACE_NEW_ALIGNED_NOTHROW) ||
           (kind >= HZ_TRACE_REALLOC && kind <= HZ_TRACE_DELETE_SIZED_ALIGNED) ||
           (kind >= HZ_TRACE_FETCH && kind <= HZ_TRACE_JOIN);
}

/* Whether this kind of operation gives a block. */
static inline bool hz_trace_gives(hz_trace_kind kind)
{
    return kind < HZ_TRACE_REALLOC;
}

/* Whether it ends one. */
static inline bool hz_trace_ends(hz_trace_kind kind)
{
    return kind >= HZ_TRACE_FREE && kind < HZ_TRACE_FETCH;
}

/* Whether it calls the allocator. */
static inline bool hz_trace_calls(hz_trace_kind kind)
{
    return kind < HZ_TRACE_FETCH;
}

/* Whether it starts another thread or waits for its end. */
static inline bool hz_trace_is_of_thread(hz_trace_kind kind)
{
    return kind == HZ_TRACE_SPAWN || kind == HZ_TRACE_JOIN;
}

/* `count` bits of `word` from bit `at` on. */
static inline uint64_t hz_trace_bits(uint64_t word, unsigned at, unsigned count)
{
    return word >> at & ((UINT64_C(1) << count) - 1);
}

/* Unpacks the operation that stands at `word`; returns where the next one stands. */
static inline const uint64_t *hz_trace_unpack(const uint64_t *word, hz_trace_operation *operation)
{
    const uint64_t low = word[0];
    uint64_t digits = hz_trace_bits(low, HZ_TRACE_DIGITS_AT, HZ_TRACE_DIGITS_BITS);
    operation->kind = (hz_trace_kind)hz_trace_bits(low, 0, HZ_TRACE_KIND_BITS);
    operation->is_cell = (low >> HZ_TRACE_CELL_AT & 1) != 0;
    operation->operand = (uint32_t)hz_trace_bits(low, HZ_TRACE_OPERAND_AT, HZ_TRACE_OPERAND_BITS);
    operation->size = low >> HZ_TRACE_SIZE_AT;
    operation->align_shift = 0;
    if ((low >> HZ_TRACE_WIDE_AT & 1) != 0) {
        const uint64_t more = word[1];
        operation->size |= hz_trace_bits(more, 0, HZ_TRACE_SIZE_MORE_BITS) << HZ_TRACE_SIZE_BITS;
        operation->operand |=
            (uint32_t)hz_trace_bits(more, HZ_TRACE_OPERAND_MORE_AT, HZ_TRACE_OPERAND_MORE_BITS)
            << HZ_TRACE_OPERAND_BITS;
        operation->align_shift =
            (uint8_t)hz_trace_bits(more, HZ_TRACE_ALIGN_AT, HZ_TRACE_ALIGN_BITS);
        digits |= more >> HZ_TRACE_DIGITS_MORE_AT << HZ_TRACE_DIGITS_BITS;
        word++;
    }
    operation->delta_ns =
        digits << hz_trace_bits(low, HZ_TRACE_EXPONENT_AT, HZ_TRACE_EXPONENT_BITS);
    return word + 1;
}

/* ---- the checksum --------------------------------------------------------------------------- */

enum { HZ_TRACE_CHECKSUM_START = 1 };

/*
 * Goes on with a checksum over `count` words: each is mixed in and the two halves of a 128-bit
 * product are folded.
 */
static inline uint64_t hz_trace_checksum(uint64_t checksum, const void *words, size_t count)
{
    const unsigned char *at = words;
    for (size_t i = 0; i < count; i++, at += sizeof(uint64_t)) {
        uint64_t word;
        __builtin_memcpy(&word, at, sizeof word);
        const unsigned __int128 product =
            (unsigned __int128)(checksum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        checksum = (uint64_t)product ^ (uint64_t)(product >> 64) ^ UINT64_C(0xd1b54a32d192ed03);
    }
    return checksum;
}

#endif
