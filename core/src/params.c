/*
 * The table of parameters as data, and the judgement of a configuration.
 *
 * Stands alone (see params.h): no allocation, no other part of hz, so that a tool links it without
 * the allocator.
 */
#include <hz/params.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define HZ_SPECIAL_NONE false
#define HZ_SPECIAL_AUTO true

/* As it is written; table_make works out the text of each default, and the last word of an enum. */
static hz_param rows[] = {
#define WORD(enumerator, word) #word " "
#define INT_ROW(name_, NAME, default_, low_, high_, scale_, unit_, special, doc_, for_experiments, \
                may_change)                                                                        \
    {.name = #name_,                                                                               \
     .env = "HZ_" #NAME,                                                                           \
     .macro = "HZ_CONFIG_" #NAME,                                                                  \
     .kind = HZ_KIND_INT,                                                                          \
     .default_value = default_,                                                                    \
     .low = low_,                                                                                  \
     .high = high_,                                                                                \
     .scale = HZ_SCALE_##scale_,                                                                   \
     .unit = unit_,                                                                                \
     .choices = "",                                                                                \
     .may_be_auto = HZ_SPECIAL_##special,                                                          \
     .doc = doc_,                                                                                  \
     .is_experimental = for_experiments,                                                           \
     .is_live = may_change},
#define ENUM_ROW(name_, NAME, default_, words, doc_, for_experiments)                              \
    {.name = #name_,                                                                               \
     .env = "HZ_" #NAME,                                                                           \
     .macro = "HZ_CONFIG_" #NAME,                                                                  \
     .kind = HZ_KIND_ENUM,                                                                         \
     .default_value = default_,                                                                    \
     .scale = HZ_SCALE_LINEAR,                                                                     \
     .unit = "",                                                                                   \
     .choices = words,                                                                             \
     .doc = doc_,                                                                                  \
     .is_experimental = for_experiments},
#define HZ_INT(...) INT_ROW(__VA_ARGS__, false, false)
#define HZ_LIVE_INT(...) INT_ROW(__VA_ARGS__, false, true)
#define HZ_ENUM(...) ENUM_ROW(__VA_ARGS__, false)
#define HZ_EXPERIMENT_INT(...) INT_ROW(__VA_ARGS__, true, false)
#define HZ_EXPERIMENT_ENUM(...) ENUM_ROW(__VA_ARGS__, true)
#include <hz/params.def>
#undef HZ_INT
#undef HZ_ENUM
#undef WORD
};

enum {
    ROW_COUNT = sizeof rows / sizeof rows[0],
    NAME_BYTES = 48,
    TEXT_BYTES = 32,
    SHOWN_BYTES = 60
};

_Static_assert(sizeof(hz_config) == ROW_COUNT * sizeof(int64_t),
               "a configuration is one number per row");

/* ---- words and numbers ---------------------------------------------------------------------- */

/* Finds word `index` of a space-separated list; returns its length, 0 past the end. */
static size_t word_at(const char *words, int64_t index, const char **start)
{
    for (;;) {
        size_t length = strcspn(words, " ");
        if (length == 0 || index == 0) {
            *start = words;
            return length;
        }
        words += length + strspn(words + length, " ");
        index--;
    }
}

static int64_t word_count(const char *words)
{
    const char *start;
    int64_t count = 0;
    while (word_at(words, count, &start) > 0) count++;
    return count;
}

static int64_t word_find(const char *words, const char *text)
{
    const char *start;
    size_t length;
    for (int64_t i = 0; (length = word_at(words, i, &start)) > 0; i++) {
        if (strlen(text) == length && strncmp(start, text, length) == 0) return i;
    }
    return -1;
}

/* Plain decimal only: no sign, no suffix, no space, no octal; false on overflow too. */
static bool decimal_value(const char *text, int64_t *value)
{
    size_t length = strspn(text, "0123456789");
    if (length == 0 || length > 18 || text[length] != '\0') return false;
    if (text[0] == '0' && length > 1) return false;
    int64_t sum = 0;
    for (size_t i = 0; i < length; i++) sum = sum * 10 + (text[i] - '0');
    *value = sum;
    return true;
}

__attribute__((format(printf, 3, 4))) static bool refusal_write(char *message, size_t size,
                                                                const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, size, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- the table ------------------------------------------------------------------------------ */

static char default_texts[ROW_COUNT][TEXT_BYTES];

static void text_of(const hz_param *r, int64_t value, char *text, size_t size)
{
    const char *start;
    if (r->may_be_auto && value == HZ_AUTO) {
        snprintf(text, size, "auto");
    } else if (r->kind == HZ_KIND_ENUM) {
        int length = (int)word_at(r->choices, value, &start);
        snprintf(text, size, "%.*s", length, start);
    } else {
        snprintf(text, size, "%" PRId64, value);
    }
}

static int64_t highest(const hz_param *r)
{
    return r->kind == HZ_KIND_ENUM ? word_count(r->choices) - 1 : r->high;
}

/* Idempotent, and every writer writes the same bytes: safe without a lock before main. */
static void table_make(void)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        hz_param *r = &rows[i];
        r->high = highest(r);
        text_of(r, r->default_value, default_texts[i], TEXT_BYTES);
        r->default_text = default_texts[i];
    }
}

size_t hz_param_count(void)
{
    return ROW_COUNT;
}

const hz_param *hz_param_at(size_t index)
{
    if (index >= ROW_COUNT) return NULL;
    if (rows[ROW_COUNT - 1].default_text == NULL) table_make();
    return &rows[index];
}

size_t hz_param_find(const char *name)
{
    size_t index = 0;
    while (index < ROW_COUNT && strcmp(rows[index].name, name) != 0) index++;
    return index;
}

/* Levenshtein distance, by one row of the usual table; names are short. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row_now[NAME_BYTES];
    size_t b_length = strlen(b);
    for (size_t j = 0; j <= b_length; j++) row_now[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row_now[0];
        row_now[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row_now[j] + 1 < best) best = row_now[j] + 1;
            if (row_now[j - 1] + 1 < best) best = row_now[j - 1] + 1;
            diagonal = row_now[j];
            row_now[j] = best;
        }
    }
    return row_now[b_length];
}

/* HZ_MAX_DIRTY for HZ_MAX_DIRTY_BYTES: the last word was left off, and at least two are there. */
static bool is_shortened(const char *env, const char *whole)
{
    size_t length = strlen(env);
    bool two_words = length > 3 && strchr(env + 3, '_') != NULL;
    return two_words && strncmp(env, whole, length) == 0 && whole[length] == '_' &&
           strchr(whole + length + 1, '_') == NULL;
}

const hz_param *hz_param_nearly(const char *env)
{
    const hz_param *nearest = NULL;
    size_t nearest_distance = 3; /* two slips are a misspelling, three another name */
    if (strlen(env) >= NAME_BYTES) return NULL;
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const hz_param *param = hz_param_at(i);
        size_t distance = edit_distance(env, param->env);
        if (distance == 0) return NULL;
        if (is_shortened(env, param->env)) distance = 1;
        /* A short name (HZ_THP) is near too many other names for two slips to mean anything. */
        if (distance == 2 && strlen(param->env) < 10) continue;
        if (distance < nearest_distance) {
            nearest = param;
            nearest_distance = distance;
        }
    }
    return nearest;
}

/* ---- a configuration ------------------------------------------------------------------------ */

static int64_t *field(hz_config *config, size_t index)
{
    return (int64_t *)(void *)config + index;
}

void hz_config_default(hz_config *config)
{
    for (size_t i = 0; i < ROW_COUNT; i++) *field(config, i) = rows[i].default_value;
}

int64_t hz_config_get(const hz_config *config, size_t index)
{
    return ((const int64_t *)(const void *)config)[index];
}

void hz_config_text(const hz_config *config, size_t index, char *text, size_t size)
{
    text_of(&rows[index], hz_config_get(config, index), text, size);
}

static bool value_is_legal(const hz_param *r, int64_t value)
{
    if (r->may_be_auto && value == HZ_AUTO) return true;
    if (value < r->low || value > highest(r)) return false;
    return r->scale != HZ_SCALE_POW2 || (value >= 0 && (value & (value - 1)) == 0);
}

/* How much of a text a message repeats, so that the legal values fit, too: whole characters of
 * UTF-8. */
static int shown_length(const char *text)
{
    size_t length = strlen(text);
    if (length <= SHOWN_BYTES) return (int)length;
    length = SHOWN_BYTES;
    while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80) length--;
    return (int)length;
}

static bool refuse_value(const hz_param *r, const char *got, char *message, size_t size)
{
    const int shown = shown_length(got);
    const char *more = got[shown] != '\0' ? "..." : "";
    if (r->kind == HZ_KIND_ENUM) {
        return refusal_write(message, size, "%s is \"%.*s%s\"; legal is one of: %s", r->name, shown,
                             got, more, r->choices);
    }
    return refusal_write(
        message, size, "%s is \"%.*s%s\"; legal is %s from %" PRId64 " to %" PRId64 " (%s)%s",
        r->name, shown, got, more, r->scale == HZ_SCALE_POW2 ? "a power of two" : "a whole number",
        r->low, r->high, r->unit, r->may_be_auto ? ", or auto" : "");
}

static bool parse_value(const hz_param *r, const char *text, int64_t *value)
{
    if (r->kind == HZ_KIND_ENUM) {
        *value = word_find(r->choices, text);
        return *value >= 0;
    }
    if (r->may_be_auto && strcmp(text, "auto") == 0) {
        *value = HZ_AUTO;
        return true;
    }
    return decimal_value(text, value) && value_is_legal(r, *value);
}

bool hz_config_set(hz_config *config, size_t index, const char *text, char *message, size_t size)
{
    const hz_param *r = &rows[index];
    int64_t value;
    if (!parse_value(r, text, &value)) return refuse_value(r, text, message, size);
    *field(config, index) = value;
    return true;
}

static bool check_ranges(const hz_config *config, char *message, size_t size)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        int64_t value = hz_config_get(config, i);
        char got[TEXT_BYTES];
        if (value_is_legal(&rows[i], value)) continue;
        snprintf(got, sizeof got, "%" PRId64, value);
        return refuse_value(&rows[i], got, message, size);
    }
    return true;
}

/* Refuses a value that is above another one, which it must fit; `what` says why. */
static bool is_within(const char *name, int64_t value, const char *most_name, int64_t most,
                      const char *what, char *message, size_t size)
{
    if (value <= most) return true;
    return refusal_write(message, size,
                         "%s is %" PRId64 " and %s %" PRId64 "; %s: lower %s or raise %s", name,
                         value, most_name, most, what, name, most_name);
}

bool hz_config_check(const hz_config *config, char *message, size_t size)
{
    static const char batch[] = "a batch must fit the magazine";
#define WITHIN(field, most, what)                                                                  \
    is_within(#field, config->field, #most, config->most, what, message, size)
    return check_ranges(config, message, size) && WITHIN(refill_batch, magazine_cap, batch) &&
           WITHIN(flush_batch, magazine_cap, batch) &&
           WITHIN(magazine_bytes, thread_cache_bytes, "one magazine must fit the thread's total");
#undef WITHIN
}
