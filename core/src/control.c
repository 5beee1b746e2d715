/*
 * What hz answers to other processes (HZ_CONTROL=1; serve.c has the socket, and who may ask):
 *
 *     stats                        counters, configuration, memory, the threads, whether a
 *                                  background thread returns memory while the program rests
 *     trim                         hz_trim
 *     set, then lines NAME=VALUE   hz_set for all of them together
 */
#include "control.h"

#include <inttypes.h>
#include <string.h>

#include "change.h"
#include "internal.h"
#include "serve.h"
#include "stats.h"
#include "usage.h"

enum {
    SENTENCE_BYTES = 512,
    THREADS_MOST = 1024, /* that an answer lists */
    SETTINGS_MOST = 32,  /* in a request */
    DECAY_PARTS_MOST =
        1 << 16, /* of the decay that a change may make due; a part is 1 MiB at most */
};

static void say_line(const char *line)
{
    hz_message(line, strlen(line));
}

static void add_end(hz_text *answer)
{
    hz_text_add(answer, "}");
}

/* ---- stats ---------------------------------------------------------------------------------- */

static void add_caches(hz_text *answer, const hz_heap *heap, uint32_t thread, const char *separator)
{
    size_t blocks = 0, bytes = 0;
    hz_survey survey;
    hz_survey_of_heap(&survey, heap);
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        blocks += survey.cached[class_];
        bytes += survey.cached[class_] * hz_class_bytes[class_];
    }
    hz_text_add(answer, "%s{\"thread\":%" PRIu32 ",\"cached_blocks\":%zu,\"cached_bytes\":%zu}",
                separator, thread, blocks, bytes);
}

static void add_threads(hz_text *answer)
{
    uint32_t listed = 0, left_out = 0;
    hz_text_add(answer, ",\"threads\":[");
    for (const hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next) {
        const uint32_t thread = hz_atomic_peek(&heap->thread);
        if (thread == 0) continue;
        if (listed == THREADS_MOST)
            left_out++;
        else
            add_caches(answer, heap, thread, listed++ > 0 ? "," : "");
    }
    hz_text_add(answer, "],\"threads_left_out\":%" PRIu32, left_out);
}

/* `answer` may be full already: then only its length grows. */
static void add_stats(hz_text *answer)
{
    hz_text_add(answer, ",\"stats\":");
    const size_t left = answer->length < answer->size ? answer->size - answer->length : 0;
    answer->length += hz_stats_json(left > 0 ? answer->start + answer->length : NULL, left);
}

/* Where all blocks lie, so that the one that asks can have the kernel count what is resident there.
 */
static void add_arena(hz_text *answer)
{
    hz_text_add(answer, ",\"arena\":{\"first\":%" PRIuPTR ",\"bytes\":%zu}", hz_map.base,
                hz_arena_used_pages() << HZ_PAGE_SHIFT);
}

static void answer_stats(hz_text *answer)
{
    hz_serve_begin(answer, "hz");
    add_stats(answer);
    add_arena(answer);
    add_threads(answer);
    hz_text_add(answer, ",\"rest_worker\":%s", hz_rest_has_thread() ? "true" : "false");
    add_end(answer);
}

/* ---- trim ----------------------------------------------------------------------------------- */

static void add_usage(hz_text *answer, const char *when)
{
    const hz_usage usage = hz_usage_now();
    hz_text_add(answer, ",\"%s\":{\"live_bytes\":%zu,\"held_bytes\":%zu,\"cached_bytes\":%zu}",
                when, usage.live_bytes, usage.held_bytes, usage.cached_bytes);
}

static void answer_trim(hz_text *answer)
{
    hz_serve_begin(answer, "hz");
    add_usage(answer, "before");
    (void)hz_trim();
    add_usage(answer, "after");
    add_end(answer);
}

/* ---- set ------------------------------------------------------------------------------------ */

/* Cuts "NAME=VALUE" in two; false when it is not that. */
static bool setting_read(char *line, hz_setting *setting)
{
    char *equals = strchr(line, '=');
    if (equals == NULL) return false;
    *equals = '\0';
    *setting = (hz_setting){line, equals + 1};
    return true;
}

/* What is due under the new values goes now, and does not wait for the program's next call. */
static void let_it_decay(void)
{
    for (uint32_t part = 0; part < DECAY_PARTS_MOST && hz_decay(); part++) continue;
}

static void set_together(const hz_setting *settings, size_t count, hz_text *answer)
{
    static const char *const kinds[] = {
        [HZ_SET_UNKNOWN] = "unknown", [HZ_SET_FIXED] = "fixed",        [HZ_SET_ILLEGAL] = "illegal",
        [HZ_SET_UNFIT] = "unfit",     [HZ_SET_NOT_RUNNING] = "memory",
    };
    char sentence[SENTENCE_BYTES];
    const hz_set_status status = hz_set_all(settings, count, sentence, sizeof sentence);
    if (status != HZ_SET_DONE) {
        hz_serve_refuse(answer, kinds[status], sentence);
        return;
    }
    let_it_decay();
    hz_serve_begin(answer, "hz");
    hz_text_add(answer, ",");
    hz_text_add_config(answer);
    add_end(answer);
}

static void answer_set(char *lines, hz_text *answer)
{
    hz_setting settings[SETTINGS_MOST];
    size_t count = 0;
    for (char *line; (line = strsep(&lines, "\n")) != NULL; count++) {
        if (count == SETTINGS_MOST) {
            hz_serve_refuse(answer, "request", "too many settings in one request");
            return;
        }
        if (!setting_read(line, &settings[count])) {
            hz_serve_refuse(answer, "request", "a setting is not of the form NAME=VALUE");
            return;
        }
    }
    set_together(settings, count, answer);
}

/* ---- all ------------------------------------------------------------------------------------ */

static void answer_request(char *request, hz_text *answer)
{
    char *lines = request;
    const char *word = strsep(&lines, "\n");
    if (strcmp(word, "stats") == 0)
        answer_stats(answer);
    else if (strcmp(word, "trim") == 0)
        answer_trim(answer);
    else if (strcmp(word, "set") == 0)
        answer_set(lines, answer);
    else
        hz_serve_refuse(answer, "request", "this hz understands stats, trim and set");
}

void hz_control_start(void)
{
    hz_serve_start(answer_request, say_line);
}
