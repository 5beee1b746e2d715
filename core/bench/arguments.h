/*
 * Command-line words to values, and the sentences with which these programs give up.
 */
#ifndef HZ_BENCH_ARGUMENTS_H
#define HZ_BENCH_ARGUMENTS_H

#include <stddef.h>
#include <stdint.h>

/* One option of a program. */
typedef struct hz_option {
    const char *name;  /* --name */
    const char *value; /* what its value is called in the help, or NULL when it takes none */
    void (*set)(void *target, const char *name, const char *text); /* stores it */
    const char *help;                                              /* one line */
} hz_option;

enum { HZ_STATUS_OK = 0, HZ_STATUS_FAILED = 1, HZ_STATUS_USAGE = 2 };

/* The request is wrong: says why on stderr and leaves with status 2. */
_Noreturn void hz_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The run went wrong: says why on stderr and leaves with status 1. */
_Noreturn void hz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The whole number in `text`, refused when it is none or outside low..high. `name` is the option's,
 * without dashes. */
uint64_t hz_parse_whole(const char *name, const char *text, uint64_t low, uint64_t high);

/* The same for a decimal number. */
double hz_parse_decimal(const char *name, const char *text, double low, double high);

/*
 * Reads the option that stands at `at`; returns the index of the word behind it and its value.
 * Refuses what is not in the table. `about` stands above the table in the answer to --help.
 */
int hz_parse_option(const hz_option *options, size_t count, const char *about, void *target, int at,
                    int argc, char **argv);

/*
 * Reads options up to the word "--"; returns the index of the word after it. Refuses what is not in
 * the table, and a line without "--" and a program. `about` stands above the table in the answer to
 * --help.
 */
int hz_parse_launcher(const hz_option *options, size_t count, const char *about, void *target,
                      int argc, char **argv);

/* Prints the table. */
void hz_print_options(const hz_option *options, size_t count);

#endif
