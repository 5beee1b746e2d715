/*
 * Between hz and the system, for programs that look into hz (linked to fake_os.c): hz's system
 * calls and clocks come here, and the program may answer them. With TEST_STRICT in the environment
 * it runs as under overcommit_memory=2: memory that hz gave back may not even be read.
 */
#ifndef TEST_FAKE_OS_H
#define TEST_FAKE_OS_H

#include <stdatomic.h>
#include <stdint.h>

#include "os_call.h"

/* The program's, or else the one behind: a system call of hz. Below 0 the result is -errno. */
long os_call(long number, const long words[HZ_OS_CALL_WORDS]);
long os_call_behind(long number, const long words[HZ_OS_CALL_WORDS]);

/* hz's time in ms, which only the program moves; 0: the system's. A program may define where it
 * begins. */
extern _Atomic uint64_t os_ms;

/* All that is due by then goes back. */
void let_decay(void);

/* The program's, or else the same: hz's exact time. */
uint64_t os_ns(void);

/* A descriptor of a file with this text. */
long os_file(const char *text);

#endif
