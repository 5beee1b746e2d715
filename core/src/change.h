/*
 * Changing parameters of the running process, for the code that takes requests from outside.
 */
#ifndef HZ_CHANGE_H
#define HZ_CHANGE_H

#include <hz/hz.h>
#include <hz/params.h>

#include "lease.h"

#pragma GCC visibility push(hidden)

/* As hz_set for all of them together: all take effect, or none. */
hz_set_status hz_set_all(const hz_setting *settings, size_t count, char *message, size_t size);
/* The text of a parameter that may change, as it was set; false: there is none of that name. */
bool hz_live_text(const char *name, char *text, size_t size);
/* The values in effect, with `auto` worked out. */
void hz_config_in_effect(hz_config *config);

#pragma GCC visibility pop

#endif
