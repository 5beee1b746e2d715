/*
 * The harness of the core's tests.
 *
 * A test program is a list of checks, each named by a sentence. Every check runs in a process of
 * its own, so that a crash or a hang fails that one check by name and the others still run. Usage
 * of every such program:
 *
 *   PROGRAM            run all checks; exit status 1 when one fails
 *   PROGRAM TEXT       run only the checks whose sentence contains TEXT
 *
 * TEST_ALLOCATOR=libhz.so in the environment makes the program fail at once unless that library
 * provides malloc: a preload that the loader dropped would otherwise test the C library.
 */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * CHECK("what holds") { ... } is a check, which returns when it held and calls require() on the
 * way; CHECK_IN(seconds, "what holds") one that may take longer than 30 s.
 */
#define CHECK(sentence) CHECK_IN(30, sentence)
#define CHECK_IN(seconds, sentence) CHECK_AT(__LINE__, seconds, sentence)
#define CHECK_AT(line, seconds, sentence) CHECK_CALLED(line, seconds, sentence)
#define CHECK_CALLED(name, seconds, sentence)                                                      \
    static void check_##name(void);                                                                \
    __attribute__((constructor)) static void add_##name(void)                                      \
    {                                                                                              \
        check_add(sentence, check_##name, seconds);                                                \
    }                                                                                              \
    static void check_##name(void)

/*
 * PROGRAM("--word") { ... } is what require_program("--word", ...) runs: this program, started anew.
 */
#define PROGRAM(word) CHECK_IN(0, word)

void check_add(const char *sentence, void (*run)(void), unsigned seconds);

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/*
 * Runs the checks that the command line asks for. The result is main's; a program without a main of
 * its own does this alone.
 */
int run_checks(int argc, char **argv);

/*
 * Runs a check in this very process, for what a fork would take away (a background thread,
 * the sanitizers' view of threads). The result is main's.
 */
int run_check_here(const char *sentence, void (*run)(void), unsigned seconds);

/* Ends the running check (or any child of it) as failed, with a message. */
__attribute__((noreturn, format(printf, 3, 4))) void check_failed(const char *file, int line,
                                                                  const char *format, ...);

#define require(condition, ...)                                                                    \
    ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, __VA_ARGS__))

/* How a child process ended. */
typedef struct ending {
    int signal;      /* the signal that killed it, or 0 */
    int status;      /* its exit status, when signal is 0 */
    char said[2048]; /* the start of what it wrote to stderr */
} ending;

/* Runs `act(subject)` in a child process, at most `seconds`; a child that returns exits with status
 * 0. */
void run_apart(void (*act)(void *), void *subject, unsigned seconds, ending *result);

/* The same; the child must end well. */
void require_well(void (*act)(void *), void *subject, unsigned seconds);

/* Starts a program with a word, under a limit of its address space if that is not 0, and with
 * settings ("A=1 B=2") if they are not NULL; what it says on stdout counts as said on stderr. */
typedef struct launch {
    const char *program, *word, *settings;
    size_t bytes_most;
} launch;
void launch_now(void *subject);

/* So started, this program runs its PROGRAM(word), and ends well. */
void require_program(const char *word, size_t bytes_most, const char *settings);

/* Starts a thread, and waits for its end; gives its result. */
pthread_t thread_start(void *(*run)(void *), const void *argument);
void *thread_end(pthread_t thread);

/* Threads whose arguments are 1, 2 and so on. */
enum { CROWD_MOST = 64 };
typedef struct crowd {
    pthread_t threads[CROWD_MOST];
    size_t count;
} crowd;
void crowd_start(crowd *all, size_t count, void *(*run)(void *));
void crowd_end(const crowd *all);

/* Waits for the end of a child, which must be a good one: exit status 0. */
void require_child_ends(pid_t child);

/* Forks; the child acts, and ends with exit status 0. */
void require_of_child(void (*act)(void));

/* The block, of which all is written; a failed check when it is none. */
void *filled_block(void *block, size_t size);

/* A fast generator of pseudo-random numbers; the whole state is the one word. */
uint64_t random_next(uint64_t *state);

/* A seed for a fuzzer: TEST_SEED from the environment, or `otherwise`. It is printed, so that a
 * failure repeats. */
uint64_t seed_chosen(uint64_t otherwise);

/* A whole number from the environment, or `otherwise`. */
uint64_t number_chosen(const char *variable, uint64_t otherwise);

/* What HZ_HARDENING and HZ_DOUBLE_FREE say: `full`, `light` or `full`, and `at_call`. */
int is_full(void);
int is_hardened(void);
int is_at_call(void);

/* Resident bytes of this process's own memory (not of mapped files), bytes of all that is mapped,
 * and how many mappings and threads it has. */
size_t resident_bytes(void);
size_t mapped_bytes(void);
size_t mapping_count(void);
size_t threads_now(void);

/* For ever if they do not come or go. */
void wait_for_threads(size_t wanted);

/* hz's counter or configuration value `name` by hz_stats_json; a failed check when hz is not in
 * effect. */
uint64_t hz_counter(const char *name);

#ifdef __cplusplus
}
#endif

#endif
