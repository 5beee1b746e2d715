/*
 * Command-line words to values: see arguments.h.
 */
#include "arguments.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void complain(const char *format, va_list words)
{
    char message[512];
    (void)vsnprintf(message, sizeof message, format, words);
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
        hz_refuse("--%s %s: want a number from %g to %g", name, text, low, high);
    return value;
}
