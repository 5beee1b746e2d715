/*
 * What stats.c adds to the texts that hz prints.
 */
#ifndef HZ_STATS_H
#define HZ_STATS_H

#include "text.h"

#pragma GCC visibility push(hidden)

/* Appends "config":{...}, the configuration in effect. */
void hz_text_add_config(hz_text *text);

#pragma GCC visibility pop

#endif
