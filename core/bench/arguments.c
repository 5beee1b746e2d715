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

void hz_print_options(const hz_option *options, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int used =
            printf("  --%s %s", options[i].name, options[i].value != NULL ? options[i].value : "");
        (void)printf("%*s %s\n", used < 24 ? 24 - used : 0, "", options[i].help);
    }
}

static const hz_option *find_option(const hz_option *options, size_t count, const char *word)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(word, "--", 2) == 0 && strcmp(word + 2, options[i].name) == 0)
            return &options[i];
    hz_refuse("%s: not an option: see %s --help", word, program_invocation_short_name);
}

int hz_parse_option(const hz_option *options, size_t count, const char *about, void *target, int at,
                    int argc, char **argv)
{
    if (strcmp(argv[at], "--help") == 0) {
        (void)printf("%s\n", about);
        hz_print_options(options, count);
        exit(HZ_STATUS_OK);
    }
    const hz_option *option = find_option(options, count, argv[at]);
    if (option->value != NULL && ++at == argc)
        hz_refuse("--%s: its value is missing", option->name);
    option->set(target, option->name, option->value != NULL ? argv[at] : "");
    return at + 1;
}

int hz_parse_launcher(const hz_option *options, size_t count, const char *about, void *target,
                      int argc, char **argv)
{
    int at = 1;
    while (at < argc && strcmp(argv[at], "--") != 0)
        at = hz_parse_option(options, count, about, target, at, argc, argv);
    if (at + 1 >= argc) hz_refuse("the program is missing: it stands after --");
    return at + 1;
}
