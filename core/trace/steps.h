/*
 * Steps: all operations of a program in the order of their time, each linked with the one that gave
 * its block and the one that ended it. Between whatever was read and the trace that is written.
 */
#ifndef HZ_TRACE_STEPS_H
#define HZ_TRACE_STEPS_H

#include <stddef.h>
#include <stdint.h>

#include "trace_format.h"

#define HZ_NO_STEP UINT64_MAX

/* One operation. */
typedef struct hz_step {
    uint64_t time;       /* in the unit of its source */
    uint64_t size;       /* bytes asked for; of a spawn and a join the thread */
    uint64_t from;       /* the step that gave the block which this one ends, or HZ_NO_STEP */
    uint64_t to;         /* the step that ends the block which this one gives, or HZ_NO_STEP */
    uint32_t thread;     /* which thread did it */
    uint8_t kind;        /* hz_trace_kind; 0: it was taken back and is not there */
    uint8_t align_shift; /* log2 of the alignment asked for, or 0 */
    uint16_t touched;    /* of the block that it gives, in 65535ths; 0: not known */
} hz_step;

/* A list of them in a file that has no name, so that it may be larger than the memory. */
typedef struct hz_steps {
    hz_step *at;    /* all of them */
    uint64_t count; /* how many */
    uint64_t room;  /* for how many there is room */
    int fd;         /* the file */
} hz_steps;

enum { HZ_TOUCHED_ALL = UINT16_MAX };

/* Makes an empty list; its file stands in the folder of `beside`. */
void hz_steps_make(hz_steps *steps, const char *beside);

/* Appends a step and returns its index. */
uint64_t hz_steps_add(hz_steps *steps, const hz_step *step);

void hz_steps_drop(hz_steps *steps);

#endif
