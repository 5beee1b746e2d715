/*
 * libhz-agent.so: answers other processes about the allocators of a process that does not run on
 * hz. It is preloaded, beside any allocator, and changes nothing about memory.
 *
 *     stats    what each allocator holds, by its own account, and its settings
 *     trim     each gives back what it does not need
 *
 * The thread and the socket are those of hz (serve.c). A process on hz answers by itself under
 * HZ_CONTROL=1; there the agent does nothing, nor does it in a set-uid program.
 */
#include <stdbool.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "asked.h"
#include "serve.h"

static void say_to_stderr(const char *line)
{
    ssize_t written = write(STDERR_FILENO, line, strlen(line));
    (void)written;
}

/* Separates the parts of a list, and says whether there was one. */
static bool add_part(hz_text *answer, bool is_first, bool (*add)(hz_text *))
{
    const size_t before = answer->length;
    if (!is_first) hz_text_add(answer, ",");
    if (add(answer)) return true;
    answer->length = before;
    return false;
}

static void answer_with_parts(hz_text *answer, const char *list, bool (*const *adds)(hz_text *),
                              size_t count)
{
    bool is_first = true;
    hz_serve_begin(answer, "agent");
    hz_text_add(answer, ",\"provider\":");
    hz_text_add_quoted(answer, agent_provider());
    hz_text_add(answer, ",\"%s\":[", list);
    for (size_t i = 0; i < count; i++) {
        if (add_part(answer, is_first, adds[i])) is_first = false;
    }
    hz_text_add(answer, "]}");
}

static void answer_agent(char *request, hz_text *answer)
{
    static bool (*const stats[])(hz_text *) = {agent_add_jemalloc, agent_add_mimalloc,
                                               agent_add_tcmalloc, agent_add_glibc};
    static bool (*const trims[])(hz_text *) = {agent_trim_jemalloc, agent_trim_mimalloc,
                                               agent_trim_tcmalloc, agent_trim_glibc};
    char *lines = request;
    const char *word = strsep(&lines, "\n");
    if (strcmp(word, "stats") == 0)
        answer_with_parts(answer, "parts", stats, sizeof stats / sizeof stats[0]);
    else if (strcmp(word, "trim") == 0)
        answer_with_parts(answer, "trimmed", trims, sizeof trims / sizeof trims[0]);
    else if (strcmp(word, "set") == 0)
        hz_serve_refuse(answer, "fixed",
                        "only hz has parameters that change in a running process, and this one "
                        "runs on another allocator");
    else
        hz_serve_refuse(answer, "request", "the agent understands stats and trim");
}

__attribute__((constructor)) static void agent_begins(void)
{
    if (getauxval(AT_SECURE) == 0 && !agent_is_on_hz()) hz_serve_start(answer_agent, say_to_stderr);
}
