/*
 * The counters, the configuration in effect and the memory in use, as JSON. Nothing here allocates.
 */
#include <inttypes.h>
#include <stdio.h>

#include "account.h"
#include "internal.h"
#include "os.h"

static const char *const stat_names[HZ_STATS_COUNT] = {
#define HZ_STAT(name, doc) #name,
#include <hz/stats.def>
#undef HZ_STAT
};

const char *hz_version(void)
{
    return HZ_VERSION;
}

/* ---- configuration -------------------------------------------------------------------------- */

void hz_text_add_config(hz_text *text)
{
    hz_config config;
    hz_config_in_effect(&config);
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

/* ---- counters ------------------------------------------------------------------------------- */

uint64_t hz_stats_total(hz_stat stat)
{
    uint64_t sum = hz_atomic_peek(&hz_heap_none.counters.of[stat]);
    for (hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next) {
        sum += hz_atomic_peek(&heap->counters.of[stat]);
    }
    return sum;
}

static void text_add_counters(hz_text *text)
{
    const char *separator = "";
    hz_text_add(text, "\"counters\":{");
    for (size_t i = 0; i < HZ_STATS_COUNT; i++) {
        if (!HZ_IS_COUNTED((hz_stat)i)) continue;
        hz_text_add(text, "%s\"%s\":%" PRIu64, separator, stat_names[i],
                    hz_stats_total((hz_stat)i));
        separator = ",";
    }
    hz_text_add(text, "}");
}

/* ---- memory --------------------------------------------------------------------------------- */

static void text_add_classes(hz_text *text, const hz_survey *survey)
{
    const char *separator = "";
    hz_text_add(text, "\"classes\":[");
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        if (survey->cut[class_] == 0) continue;
        hz_text_add(text, "%s{\"bytes\":%" PRIu32 ",\"live\":%zu,\"free\":%zu,\"cut\":%zu}",
                    separator, hz_class_bytes[class_], hz_survey_live(survey, class_),
                    survey->cached[class_] + survey->shared[class_], survey->cut[class_]);
        separator = ",";
    }
    hz_text_add(text, "]");
}

static void text_add_memory(hz_text *text)
{
    hz_survey survey;
    (void)hz_survey_make(&survey);
    const hz_usage usage = hz_survey_usage(&survey);
    hz_text_add(text, "\"memory\":{\"committed_bytes\":%zu,\"free_bytes\":%zu,",
                usage.committed_bytes, usage.free_bytes);
    hz_text_add(text, "\"held_bytes\":%zu,\"live_bytes\":%zu,\"live_blocks\":%zu,",
                usage.held_bytes, usage.live_bytes, usage.live_blocks);
    hz_text_add(text, "\"cached_bytes\":%zu,\"cached_blocks\":%zu,\"shared_blocks\":%zu,",
                usage.cached_bytes, usage.cached_blocks, usage.shared_blocks);
    hz_text_add(text, "\"large_blocks\":%zu,\"large_bytes\":%zu,", survey.large_blocks,
                survey.large_bytes);
    text_add_classes(text, &survey);
    hz_text_add(text, "}");
}

size_t hz_stats_json(char *start, size_t size)
{
    hz_text text = {start, size, 0};
    hz_text_add(&text, "{\"version\":\"%s\",\"frozen\":%s,", hz_version(),
                HZ_IS_FROZEN ? "true" : "false");
    hz_text_add_config(&text);
    hz_text_add(&text, ",");
    text_add_counters(&text);
    hz_text_add(&text, ",");
    text_add_memory(&text);
    hz_text_add(&text, "}");
    return text.length;
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

/* Called once, at the end of the process. The texts are not on the stack: a thread whose stack has
 * 16 KiB may call exit. */
void hz_stats_dump(const char *path_pattern)
{
    static char path[4096], json[16384], message[4200];
    expand_path(path_pattern, path, sizeof path);
    const size_t length = hz_stats_json(json, sizeof json - 1);
    const bool is_whole = length <= sizeof json - 2;
    if (is_whole) {
        json[length] = '\n';
        if (hz_os_write_file(path, json, length + 1)) return;
    }
    hz_text text = {message, sizeof message, 0};
    hz_text_add(&text, "hz: HZ_STATS: cannot write %s%s\n", path,
                is_whole ? "" : ": the text is too long");
    hz_message(message, text.length);
}
