/*
 * Command-line words to values: see arguments.h.
 */
#include "arguments.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A sentence is one line, whatever stands in the names that it tells. */
static void complain(const char *format, va_list words)
{
    char message[PATH_MAX + 512];
    (void)vsnprintf(message, sizeof message, format, words);
    for (char *at = message; *at != '\0'; at++)
        if (iscntrl((unsigned char)*at)) *at = '?';
    (void)fprintf(stderr, "%s: %s\n", program_invocation_short_name, message);
}

void hz_refuse(const char *format, ...)
{
    va_list words;
    va_start(words, format);
    complain(format, words);
    va_end(words);
    _Exit(HZ_STATUS_USAGE);
}

void hz_fail(const char *format, ...)
{
    va_list words;
    va_start(words, format);
    complain(format, words);
    va_end(words);
    _Exit(HZ_STATUS_FAILED);
}

uint64_t hz_parse_whole(const char *name, const char *text, uint64_t low, uint64_t high)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || text[0] < '0' || text[0] > '9' || value < low || value > high)
        hz_refuse("--%s %s: want a whole number from %llu to %llu", name, text,
                  (unsigned long long)low, (unsigned long long)high);
    return value;
}

double hz_parse_decimal(const char *name, const char *text, double low, double high)
{
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= low && value <= high))
        hz_refuse("--%s %s: want a number from %.12g to %.12g", name, text, low, high);
    return value;
}

/* Whether a name is that of an option; '-' stands for '_', too. */
bool hz_same_name(const char *given, const char *name)
{
    for (; *given != '\0' && *name != '\0'; given++, name++)
        if (*given != *name && !(*given == '-' && *name == '_')) return false;
    return *given == *name;
}

static uint64_t bound(double value)
{
    return value >= 0x1p64 ? UINT64_MAX : (uint64_t)value;
}

static void store(const hz_option *o, void *target, const char *name, const char *text)
{
    void *field = (char *)target + o->field;
    switch (o->kind) {
    case HZ_OPTION_FLAG:
        *(bool *)field = true;
        break;
    case HZ_OPTION_WHOLE:
        *(unsigned *)field = (unsigned)hz_parse_whole(name, text, bound(o->low), bound(o->high));
        break;
    case HZ_OPTION_LONG:
        *(uint64_t *)field = hz_parse_whole(name, text, bound(o->low), bound(o->high));
        break;
    case HZ_OPTION_DECIMAL:
        *(double *)field = hz_parse_decimal(name, text, o->low, o->high);
        break;
    case HZ_OPTION_MS:
        *(int64_t *)field = (int64_t)(1e6 * hz_parse_decimal(name, text, o->low, o->high));
        break;
    case HZ_OPTION_MB:
        *(int64_t *)field = 1024 * (int64_t)hz_parse_whole(name, text, 1, 1 << 30);
        break;
    case HZ_OPTION_TEXT:
        *(const char **)field = text;
        break;
    case HZ_OPTION_CALL:
        o->set(target, name, text);
    }
}

static void answer_help(const hz_command *command)
{
    (void)printf("%s\n", command->about);
    for (size_t i = 0; i < command->count; i++) {
        const hz_option *o = &command->options[i];
        const int used = printf("  --%s %s", o->name, o->value != NULL ? o->value : "");
        (void)printf("%*s %s\n", used < 24 ? 24 - used : 0, "", o->help);
    }
    exit(HZ_STATUS_OK);
}

int hz_parse_option(const hz_command *command, void *target, int at, int argc, char **argv)
{
    const hz_option *found = NULL;
    const char *word = argv[at];
    const bool is_option = strncmp(word, "--", 2) == 0;
    if (strcmp(word, "--help") == 0) answer_help(command);
    for (size_t i = 0; i < command->count && is_option; i++)
        if (hz_same_name(word + 2, command->options[i].name)) found = &command->options[i];
    if (found == NULL && (command->other == NULL || !is_option))
        hz_refuse("%s: not an option: see %s --help", word, program_invocation_short_name);
    const bool has_value = found == NULL || found->value != NULL;
    if (has_value && at + 1 == argc) hz_refuse("%s: its value is missing", word);
    const char *text = has_value ? argv[at + 1] : "";
    if (found != NULL)
        store(found, target, found->name, text);
    else
        command->other(target, word + 2, text);
    return at + 1 + has_value;
}

int hz_parse_launcher(const hz_command *command, void *target, int argc, char **argv)
{
    int at = 1;
    while (at < argc && strcmp(argv[at], "--") != 0)
        at = hz_parse_option(command, target, at, argc, argv);
    if (at + 1 >= argc) hz_refuse("the program is missing: it stands after --");
    return at + 1;
}
