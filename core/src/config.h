/*
 * hz_cfg, the configuration in effect: a variable that start.c fills, or, in a frozen build,
 * constants.
 *
 * Precedence: the table's default < hz_config.h (HZ_CONFIG_HEADER) < the environment (not in a
 * frozen build). `auto` is worked out by start.c: for such a row read the resolved value
 * (hz_map.shards), never hz_cfg.
 */
#ifndef HZ_CONFIG_H
#define HZ_CONFIG_H

#include <hz/params.h>

#include "atomic.h"

#ifdef HZ_CONFIG_HEADER
#include HZ_CONFIG_HEADER
#if !defined(HZ_CONFIG_SCHEMA) || HZ_CONFIG_SCHEMA != HZ_CONFIG_SCHEMA_VERSION
#error "HZ_CONFIG_HEADER is of another schema: make it anew with hztune export --format header"
#endif
#define HZ_CONFIG_VALUE(NAME, default_) HZ_CONFIG_##NAME
#else
#define HZ_CONFIG_VALUE(NAME, default_) default_
#endif

/* The values that this build starts from, as an initializer of hz_config. */
#define HZ_INT(name, NAME, default_, low, high, scale, unit, special, doc)                         \
    .name = HZ_CONFIG_VALUE(NAME, default_),
#define HZ_ENUM(name, NAME, default_, words, doc) .name = HZ_CONFIG_VALUE(NAME, default_),
static const hz_config hz_cfg_built = {
#include <hz/params.def>
};
#undef HZ_INT
#undef HZ_ENUM

/* The highest legal value of a parameter that is a number, for static assertions: the size of a
 * member of a struct that no program has. */
#define HZ_INT(name, NAME, default_, low, high, scale, unit, special, doc)                         \
    char name[(high) > 0 ? (high) : 1];
#define HZ_ENUM(name, NAME, default_, words, doc)
typedef struct hz_param_most {
#include <hz/params.def>
} hz_param_most;
#undef HZ_INT
#undef HZ_ENUM
#define HZ_PARAM_MOST(name) sizeof(((hz_param_most *)NULL)->name)

#ifdef HZ_FROZEN
#define hz_cfg hz_cfg_built
#define HZ_IS_FROZEN true
#define hz_live(name) hz_cfg_built.name
#define hz_live_put(index, value) ((void)(index), (void)(value))
#define hz_cfg_put(config) ((void)(config))
#else
extern hz_config hz_cfg __attribute__((visibility("hidden")));
#define HZ_IS_FROZEN false
/* The present value of an HZ_LIVE_INT; another thread may change it between two reads. */
#define hz_live(name) hz_plain_peek(&hz_cfg.name)
/* Changes row `index`; only change.c does. */
#define hz_live_put(index, value) hz_plain_poke((int64_t *)(void *)&hz_cfg + (index), (value))
/* Puts a whole configuration in effect; only start.c does. */
#define hz_cfg_put(config) ((void)(hz_cfg = *(config)))
#endif

#endif
