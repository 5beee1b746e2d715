/*
 * What a case of the model asks of its engine.
 *
 * A case is a few calls of hz, made by two or three threads. The engine (engine.cpp) runs it many
 * times, each time with another order of the threads' atomic accesses and, for each relaxed load,
 * another one of the values that C11 allows. The code under test is hz's own, compiled from
 * core/src: gcc's -fsanitize=thread makes it report each access, and the engine hands the reports
 * to Relacy instead of to ThreadSanitizer's runtime.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct model_case {
    const char *name;         /* as on the command line */
    unsigned threads;         /* 2 or 3 */
    const char *settings[8];  /* "HZ_NAME=value" */
    void (*before)(void);     /* alone, in direct mode: see model_become; NULL: nothing */
    void (*thread)(unsigned); /* what each thread does */
    void (*after)(void);      /* alone, in direct mode, when all threads have finished; NULL */
    bool is_cold;             /* hz has not started when the threads begin */
} model_case;

extern const model_case model_cases[];
extern const size_t model_case_count;

/* In `before` and `after` nothing runs beside: accesses go straight to memory. From now on they are
 * made as this thread, with its thread-local variables. */
void model_become(unsigned thread);

/* In a loop that waits for another thread: lets the others run. */
void model_wait(void);

/* Runs what hz has asked to be run when a thread ends. */
void model_thread_ends(void);

/* Forks: runs `child` in what the child of a fork by this thread finds, then goes on as the parent
 * does. */
void model_fork(void (*child)(void));

/* Ends the run as failed. */
void model_fail(const char *why);

#define model_require(condition) ((condition) ? (void)0 : model_fail(#condition))

#ifdef __cplusplus
}
#endif

#endif
