/*
 * The counters and the configuration in effect, as JSON. Nothing here allocates.
 */
#include <hz/hz.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"
#include "os.h"
#include "stats.h"

static const char *const stat_names[HZ_STATS_COUNT] = {
#define HZ_STAT(name, doc) #name,
#include "stats.def"
#undef HZ_STAT
};

const char *hz_version(void)
{
    return HZ_VERSION;
}

/* ---- text ----------------------------------------------------------------------------------- */

void hz_text_add(hz_text *text, const char *format, ...)
{
    va_list arguments;
    size_t left = text->length < text->size ? text->size - text->length : 0;
    va_start(arguments, format);
    int added = vsnprintf(left > 0 ? text->start + text->length : NULL, left, format, arguments);
    va_end(arguments);
    if (added > 0) text->length += (size_t)added;
}

/* The value in effect: what the configuration says, with `auto` worked out. */
static void resolve(hz_config *config)
{
    *config = hz_cfg;
    if (config->shards == HZ_AUTO) config->shards = hz_map.shards;
}

void hz_text_add_config(hz_text *text)
{
    hz_config config;
    resolve(&config);
    hz_text_add(text, "\"config\":{");
    for (size_t i = 0; i < hz_param_count(); i++) {
        char value[32];
        const hz_param *param = hz_param_at(i);
        const char *quote = param->kind == HZ_KIND_ENUM ? "\"" : "";
        hz_config_text(&config, i, value, sizeof value);
        hz_text_add(text, "%s\"%s\":%s%s%s", i > 0 ? "," : "", param->name, quote, value, quote);
    }
    hz_text_add(text, "}");
}

bool hz_param_value(const char *name, int64_t *value)
{
    hz_config config;
    size_t index = hz_param_find(name);
    if (index == hz_param_count()) return false;
    resolve(&config);
    *value = hz_config_get(&config, index);
    return true;
}

/* ---- counters ------------------------------------------------------------------------------- */

static uint64_t total(hz_stat stat)
{
    uint64_t sum = hz_atomic_peek(&hz_heap_none.counters.of[stat]);
    for (hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next) {
        sum += hz_atomic_peek(&heap->counters.of[stat]);
    }
    return sum;
}

size_t hz_stats_json(char *start, size_t size)
{
    hz_text text = {start, size, 0};
    hz_text_add(&text, "{\"version\":\"%s\",\"frozen\":%s,", hz_version(),
                HZ_IS_FROZEN ? "true" : "false");
    hz_text_add_config(&text);
    hz_text_add(&text, ",\"counters\":{");
    const char *separator = "";
    for (size_t i = 0; i < HZ_STATS_COUNT; i++) {
        if (!HZ_IS_COUNTED((hz_stat)i)) continue;
        hz_text_add(&text, "%s\"%s\":%" PRIu64, separator, stat_names[i], total((hz_stat)i));
        separator = ",";
    }
    hz_text_add(&text, "}}");
    return text.length;
}

hz_usage hz_usage_now(void)
{
    return (hz_usage){total(HZ_STAT_committed_bytes), hz_pages_free_bytes()};
}

/* Every "%p" of the pattern becomes the pid, so that children do not overwrite each other's file.
 */
static void expand_path(const char *pattern, char *path, size_t size)
{
    hz_text text = {path, size, 0};
    for (; *pattern != '\0'; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'p') {
            hz_text_add(&text, "%" PRIu32, hz_os_pid());
            pattern++;
        } else {
            hz_text_add(&text, "%c", *pattern);
        }
    }
}

void hz_stats_dump(const char *path_pattern)
{
    char path[4096], json[8192];
    expand_path(path_pattern, path, sizeof path);
    size_t length = hz_stats_json(json, sizeof json - 1);
    if (length > sizeof json - 2) return;
    json[length] = '\n';
    if (hz_os_write_file(path, json, length + 1)) return;
    char message[4200];
    hz_text text = {message, sizeof message, 0};
    hz_text_add(&text, "hz: HZ_STATS: cannot write %s\n", path);
    hz_os_write_stderr(message, text.length);
}
