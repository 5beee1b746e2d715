/*
 * The signals of hz's own threads (rest.c, background.c, serve.c, which the agent has, too).
 *
 * All are blocked, so that the program's handlers never run on such a thread; but not those that a
 * thread gets for what it does itself. Blocked, such a signal kills the process, whatever the
 * program does about it: a sandbox may answer a system call by a handler of SIGSYS.
 */
#ifndef HZ_OWN_SIGNALS_H
#define HZ_OWN_SIGNALS_H

#include <pthread.h>
#include <signal.h>

/* Before such a thread is made, which gets the mask of the one that makes it. */
static inline void hz_own_signals_block(sigset_t *before)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    sigset_t foreign;
    sigfillset(&foreign);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(&foreign, own[i]);
    pthread_sigmask(SIG_BLOCK, &foreign, before);
}

static inline void hz_own_signals_restore(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

#endif
