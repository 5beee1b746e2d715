/*
 * What usage.c counts, for the code that prints it.
 */
#ifndef HZ_USAGE_H
#define HZ_USAGE_H

#include <hz/hz.h>

#include "types.h"

typedef struct hz_survey {
    size_t cut[HZ_CLASSES + 1];    /* by class: blocks that were cut */
    size_t cached[HZ_CLASSES + 1]; /* of those, free ones that wait in the heap of a thread */
    size_t shared[HZ_CLASSES + 1]; /* of those, free ones in inboxes, depots and spans */
    size_t span_bytes;             /* pages of all spans */
    size_t large_blocks;           /* live large blocks */
    size_t large_bytes;            /* their pages */
    size_t deferred_bytes;         /* pages of large blocks whose free is deferred */
    size_t unused_bytes;           /* unused pages that are still resident */
} hz_survey;

#pragma GCC visibility push(hidden)

/* False, and all zero, when hz cannot start. */
bool hz_survey_make(hz_survey *survey);
/* Only what waits in one heap. */
void hz_survey_of_heap(hz_survey *survey, const hz_heap *heap);
/* Blocks of a class that the program has. */
size_t hz_survey_live(const hz_survey *survey, uint32_t class_);
hz_usage hz_survey_usage(const hz_survey *survey);

#pragma GCC visibility pop

#endif
