/*
 * What hz tells of its settings and its memory, and lets be changed, for the code that prints it or
 * takes requests: change.c, stats.c, usage.c, control.c.
 */
#ifndef HZ_ACCOUNT_H
#define HZ_ACCOUNT_H

#include <hz/hz.h>
#include <hz/params.h>

#include "lease.h"
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

/* As hz_set for all of them together: all take effect, or none. */
hz_set_status hz_set_all(const hz_setting *settings, size_t count, char *message, size_t size);
/* The text of a parameter that may change, as it was set; false: there is none of that name. */
bool hz_live_text(const char *name, char *text, size_t size);
/* The values in effect, with `auto` worked out. */
void hz_config_in_effect(hz_config *config);

/* Appends "config":{...}, the configuration in effect. */
void hz_text_add_config(hz_text *text);

/* False, and all zero, when hz cannot start. */
bool hz_survey_make(hz_survey *survey);
/* Only what waits in one heap. */
void hz_survey_of_heap(hz_survey *survey, const hz_heap *heap);
/* Blocks of a class that the program has. */
size_t hz_survey_live(const hz_survey *survey, uint32_t class_);
hz_usage hz_survey_usage(const hz_survey *survey);

/* Under HZ_CONTROL=1: answers requests from outside the process. */
void hz_control_start(void);

#pragma GCC visibility pop

#endif
