/*
 * Introspection of hz's parameters: the table, a configuration, and the only place where a
 * configuration is judged.
 *
 * This part of hz stands alone: it allocates nothing and needs no other part, so that a tool can
 * link the table and the checks without linking the allocator.
 */
#ifndef HZ_PARAMS_H
#define HZ_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the table's meaning: hz_config.h and profiles carry it. */
#define HZ_CONFIG_SCHEMA_VERSION 1

/* The value that stands for the word `auto`. */
#define HZ_AUTO (-1)

/* The words of every enum row, numbered from 0 in the order of the table: HZ_DEPOT_LOCK_MUTEX and
 * so on. */
#define HZ_INT(name, NAME, default_, low, high, scale, unit, special, doc)
#define HZ_ENUM(name, NAME, default_, words, doc) enum hz_##name{words};
#define WORD(enumerator, word) enumerator,
#include <hz/params.def>
#undef HZ_INT
#undef HZ_ENUM
#undef WORD

typedef enum hz_param_kind { HZ_KIND_INT = 0, HZ_KIND_ENUM = 1 } hz_param_kind;
typedef enum hz_param_scale {
    HZ_SCALE_LINEAR = 0,
    HZ_SCALE_LOG = 1,
    HZ_SCALE_POW2 = 2
} hz_param_scale;

/* One row of params.def, as data. */
typedef struct hz_param {
    const char *name;         /* the field of hz_config, e.g. "magazine_cap" */
    const char *env;          /* the variable, e.g. "HZ_MAGAZINE_CAP" */
    const char *macro;        /* the macro of hz_config.h, e.g. "HZ_CONFIG_MAGAZINE_CAP" */
    hz_param_kind kind;       /* a whole number, or one word of `choices` */
    int64_t default_value;    /* of an enum the index of the word */
    const char *default_text; /* the same as it would be written in the environment */
    int64_t low, high; /* legal range, both ends included; of an enum: the indices of `choices` */
    hz_param_scale scale; /* how to step through the range; POW2 is also a rule */
    const char *unit;     /* unit of the number; "" for an enum */
    const char *choices;  /* legal words separated by spaces; "" for a number */
    bool may_be_auto;     /* whether the word `auto` is legal */
    const char *doc;      /* what it does, in one sentence */
    bool is_experimental; /* whether only experiments set it */
    bool is_live;         /* whether it may change while a process runs */
} hz_param;

/* A configuration: one field per row, in the order of the table. An enum is held as the index of
 * its word. */
typedef struct hz_config {
#define HZ_INT(name, NAME, default_, low, high, scale, unit, special, doc) int64_t name;
#define HZ_ENUM(name, NAME, default_, words, doc) int64_t name;
#include <hz/params.def>
#undef HZ_INT
#undef HZ_ENUM
} hz_config;

/* Number of rows. */
size_t hz_param_count(void);

/* Row `index`, or NULL past the end. */
const hz_param *hz_param_at(size_t index);

/* Index of the row called `name` (as in the table, lower case), or hz_param_count() when there is
 * none. */
size_t hz_param_find(const char *name);

/* The row whose variable is nearly `env` (a likely misspelling), or NULL; NULL too when `env` is a
 * row's own. */
const hz_param *hz_param_nearly(const char *env);

/* Fills `config` with the defaults of the table. */
void hz_config_default(hz_config *config);

/* The value of row `index`. */
int64_t hz_config_get(const hz_config *config, size_t index);

/*
 * Sets row `index` from `text` as the environment would hold it. False when the text is not legal
 * for that row: then `config` is unchanged and `message` (of `size` bytes, always terminated) says
 * what was got and what is legal.
 */
bool hz_config_set(hz_config *config, size_t index, const char *text, char *message, size_t size);

/* Writes row `index` as text ("65536", "mutex", "auto") into `text` of `size` bytes. */
void hz_config_text(const hz_config *config, size_t index, char *text, size_t size);

/*
 * Judges the whole configuration: each range, then the relations between rows. False with a
 * sentence in `message` when hz would not run it as it stands.
 */
bool hz_config_check(const hz_config *config, char *message, size_t size);

#ifdef __cplusplus
}
#endif

#endif
