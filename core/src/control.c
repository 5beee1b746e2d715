/*
 * What hz answers to other processes (HZ_CONTROL=1; serve.c has the socket, and who may ask):
 *
 *     stats                        counters, configuration, memory, the threads, whether a
 *                                  background thread returns memory while the program rests
 *     trim                         hz_trim
 *     set, govern                  hz_set for all of their lines together (lease.h)
 */
#include <inttypes.h>
#include <string.h>

#include "account.h"
#include "internal.h"
#include "serve.h"

enum {
    LEVER_BYTES = 32,
    THREADS_MOST = 1024, /* that an answer lists */
    DECAY_PARTS_MOST =
        1 << 16, /* of the decay that a change may make due; a part is 1 MiB at most */
};

static void say_line(const char *line)
{
    hz_message(line, strlen(line));
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

static void add_levers(hz_text *answer)
{
    char value[LEVER_BYTES];
    hz_text_add(answer, ",\"levers\":{");
    for (size_t i = 0; i < hz_param_count(); i++)
        if (hz_live_text(hz_param_at(i)->name, value, sizeof value))
            hz_lease_add_value(answer, hz_param_at(i)->name, value);
    hz_text_add(answer, "}");
}

static void answer_stats(hz_text *answer)
{
    hz_serve_begin(answer, "hz");
    add_stats(answer);
    /* where all blocks lie, so that the one that asks can have the kernel count what is resident */
    hz_text_add(answer, ",\"arena\":{\"first\":%" PRIuPTR ",\"bytes\":%zu}", hz_map.base,
                hz_arena_used_pages() << HZ_PAGE_SHIFT);
    add_threads(answer);
    hz_text_add(answer, ",\"rest_worker\":%s", hz_rest_has_thread() ? "true" : "false");
    add_levers(answer);
    hz_text_add(answer, "}");
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
    hz_text_add(answer, "}");
}

/* ---- set ------------------------------------------------------------------------------------ */

static const char *set_together(const hz_setting *settings, size_t count, char *sentence,
                                size_t size)
{
    static const char *const kinds[] = {
        [HZ_SET_UNKNOWN] = "unknown", [HZ_SET_FIXED] = "fixed",        [HZ_SET_ILLEGAL] = "illegal",
        [HZ_SET_UNFIT] = "unfit",     [HZ_SET_NOT_RUNNING] = "memory",
    };
    const hz_set_status status = hz_set_all(settings, count, sentence, size);
    if (status != HZ_SET_DONE) return kinds[status];
    /* What is due under the new values goes now, and does not wait for the program's next call. */
    for (uint32_t part = 0; part < DECAY_PARTS_MOST && hz_decay(); part++) continue;
    return NULL;
}

/* ---- all ------------------------------------------------------------------------------------ */

static bool answer_request(const char *word, hz_text *answer)
{
    if (strcmp(word, "stats") == 0)
        answer_stats(answer);
    else if (strcmp(word, "trim") == 0)
        answer_trim(answer);
    else
        return false;
    return true;
}

void hz_control_start(void)
{
    static const hz_levers levers = {"hz", set_together, hz_live_text};
    hz_serve_start(answer_request, &levers, say_line);
}
