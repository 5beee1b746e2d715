/*
 * Command-line words to values, and the sentences with which these programs give up.
 */
#ifndef HZ_BENCH_ARGUMENTS_H
#define HZ_BENCH_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an option stores, and so the type of its field. Milliseconds are kept as ns, MiB as KiB. */
typedef enum hz_option_kind {
    HZ_OPTION_FLAG,    /* bool; takes no value */
    HZ_OPTION_WHOLE,   /* unsigned, or an int that is not negative */
    HZ_OPTION_LONG,    /* uint64_t */
    HZ_OPTION_DECIMAL, /* double */
    HZ_OPTION_MS,      /* int64_t, in ns */
    HZ_OPTION_MB,      /* int64_t, in KiB */
    HZ_OPTION_TEXT,    /* const char * */
    HZ_OPTION_CALL,    /* none: `set` does it */
} hz_option_kind;

/* One option of a program. */
typedef struct hz_option {
    const char *name;    /* --name */
    const char *value;   /* what its value is called in the help, or NULL when it takes none */
    const char *help;    /* one line */
    hz_option_kind kind; /* what it stores */
    size_t field;        /* where: the offset in the target */
    double low, high;    /* legal range of a number, both ends included */
    void (*set)(void *target, const char *name, const char *text); /* HZ_OPTION_CALL */
} hz_option;

/* The end of a row; HZ_TARGET is the struct that holds the fields. */
#define HZ_NUMBER(kind, field, low, high)                                                          \
    HZ_OPTION_##kind, offsetof(HZ_TARGET, field), low, high, NULL
#define HZ_STORE(kind, field) HZ_NUMBER(kind, field, 0, 0)
#define HZ_DO(set) HZ_OPTION_CALL, 0, 0, 0, set

/* The command line of a program. */
typedef struct hz_command {
    const char *about;        /* stands above the options in the answer to --help */
    const hz_option *options; /* all that it takes */
    size_t count;             /* how many */
    void (*other)(void *target, const char *name, const char *text); /* takes an option that is not
                                                                        in the table, or NULL */
} hz_command;

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

/* Whether a name is that of an option or parameter; '-' may stand for '_'. */
bool hz_same_name(const char *given, const char *name);

/*
 * Reads the option that stands at `at`, and its value behind it; returns the index of the word
 * behind both. Answers --help, and refuses what the command does not take.
 */
int hz_parse_option(const hz_command *command, void *target, int at, int argc, char **argv);

/*
 * Reads options up to the word "--"; returns the index of the word after it. Refuses a line without
 * "--" and a program.
 */
int hz_parse_launcher(const hz_command *command, void *target, int argc, char **argv);

#endif
