/*
 * Starting a program and watching it: its environment, its pipes, its end, and the end of
 * everything it started.
 *
 * A child leads a session of its own, or at least a process group, dies with its parent, is the
 * kernel's first choice when memory runs out and dumps no core. What it writes is read without ever
 * blocking it; only the first and the last HZ_CAPTURE_BYTES are kept.
 */
#ifndef HZ_BENCH_CHILD_H
#define HZ_BENCH_CHILD_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

enum { HZ_CAPTURE_BYTES = 64 * 1024, HZ_CAPTURED_MAX = 2 * HZ_CAPTURE_BYTES, HZ_GIVEN_FD = 3 };

/* Time after which a program that has stopped itself will not go on, ns. */
#define HZ_STOPPED_NS INT64_C(5000000000)

/* The beginning of a stream, and its end. */
typedef struct hz_capture {
    int fd;                       /* read end of a pipe, or -1 when it is closed */
    int keep_fd;                  /* file that gets the first `keep` bytes, or -1 */
    uint64_t keep;                /* see there */
    uint64_t total;               /* bytes read so far */
    char head[HZ_CAPTURE_BYTES];  /* the first ones */
    char bytes[HZ_CAPTURE_BYTES]; /* ring: byte n stands at n modulo its size */
} hz_capture;

/* How it ended. */
typedef struct hz_ending {
    bool ended;          /* whether it has */
    int code;            /* exit status, or 0 */
    int signal;          /* what killed it, or 0 */
    struct rusage usage; /* its own, and that of the children it waited for */
} hz_ending;

/* A process and what is known of it. */
typedef struct hz_child {
    pid_t pid;             /* leader of its session, or of its process group */
    int pidfd;             /* readable when it has ended */
    hz_capture out;        /* stdout, when captured */
    hz_capture err;        /* stderr, when captured */
    hz_ending end;         /* set by hz_child_reap */
    const char *killed_as; /* why we killed it ("hang", "oom"), or NULL */
    int64_t oom_kills;     /* the machine's, when it was started */
} hz_child;

/* What to start. */
typedef struct hz_spawn {
    const char *const *argv;    /* program and arguments */
    const char *const *changes; /* see hz_variable_set; NULL behind the last, or no list */
    int given_fd;               /* becomes descriptor HZ_GIVEN_FD of the child; -1: none */
    int gate_fd;        /* socket: the child tells its pid there and waits for a byte before it
                           executes, and for the end when none comes; -1: none */
    const char *const *doors; /* files of control groups that the child joins; NULL behind the last,
                                 or no list */
    bool keeps_session;       /* it stays in this session, in a process group of its own */
    bool is_mute;             /* with `captured`: stdout goes to nowhere, all the same */
    bool captured; /* stdin is empty, stdout and stderr go to `out` and `err`; else all three are
                      inherited */
} hz_spawn;

/* Sets a variable of this process, "NAME=VALUE", or unsets one, "NAME"; the word is kept. */
void hz_variable_set(const char *word);

/*
 * Makes this process adopt orphaned descendants, and gets SIGHUP when its own parent ends. Returns
 * a descriptor that becomes readable when a signal wants it to end; none is ever taken from it.
 */
int hz_become_keeper(void);

/*
 * Sees to it that this process, which sleeps most of the time, runs at once when it wakes, however
 * busy the CPUs are. What it starts afterwards has the usual priority.
 */
void hz_hurry_self(void);

/* Writes a text to a file that is there; false, with errno, when that is refused. */
bool hz_write_file(const char *path, const char *text);

/* Starts it; refuses with a sentence when the program cannot be run. */
void hz_child_start(hz_child *child, const hz_spawn *spawn);

/* Reads what has arrived; false when the stream has ended. */
bool hz_capture_read(hz_capture *capture);

/* Reads what is left when its writer has ended; one that holds it open is not waited for. */
void hz_capture_read_rest(hz_capture *capture);

/* Copies what is kept, oldest first, into `text` of HZ_CAPTURED_MAX; returns its length. */
size_t hz_capture_copy(const hz_capture *capture, char *text);

/* Takes note of the child's end if it has ended, and returns whether it has. */
bool hz_child_reap(hz_child *child);

/* Kills the child and all its descendants for a reason ("hang", "oom") and waits for the child. */
void hz_child_kill(hz_child *child, const char *reason);

/* What its end amounts to: ok, crash, hang, oom, rejected or failed. */
const char *hz_child_status(const hz_child *child);

/* Kills and reaps every descendant of this process. */
void hz_kill_descendants(void);

/*
 * Removes the control groups behind doors, NULL behind the last, where the parent of this keeper
 * has ended, and can remove them no more.
 */
void hz_remove_orphaned_groups(const char *const *doors);

/*
 * `hz-launch --tie PARENT ENVIRONMENT REPORT PROGRAM ARGUMENTS...`: ties this process to PARENT and
 * executes PROGRAM in its place.
 *
 * For a parent with several threads, which may run nothing between fork and exec. ENVIRONMENT is a
 * descriptor from which PROGRAM's variables are read ("NAME=VALUE", each with a zero byte behind
 * it): they are not this process's own, so that a library of LD_PRELOAD is loaded once, and by
 * PROGRAM. When PROGRAM cannot be executed, the errno is written to the descriptor REPORT, as an
 * int.
 */
_Noreturn void hz_tie(int argc, char **argv);

#endif
