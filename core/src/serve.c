/*
 * The thread that answers requests from other processes of the same user (HZ_CONTROL=1). Stands
 * alone, so that the agent has it, too.
 *
 * The thread has a table of descriptors of its own (CLOSE_RANGE_UNSHARE). So the program never sees
 * the socket: no descriptor has another number because of it, a daemon that closes all of its own
 * does not close it, and neither a fork nor an exec passes it on. Everything else in the new table
 * is closed, as it would keep the program's pipes and sockets open. A fork's child has no such
 * thread. An exec ends the thread, and the name is free for the next program.
 *
 * A client that connects and says nothing is left after PATIENCE_S seconds.
 *
 * The thread ends with main, as a process whose main ends by pthread_exit lives until its last
 * thread has ended. It may be cancelled only where it waits for a client: there it holds nothing.
 */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "own_signals.h"

#ifndef SYS_close_range
#define SYS_close_range 436 /* on every processor */
#endif

enum {
    UNSHARE = 2, /* CLOSE_RANGE_UNSHARE */
    PATIENCE_S = 2,
    PAUSE_US = 10000,
    WAITING_MOST = 64,
    REQUEST_BYTES = 4096,
    ANSWER_BYTES = 128 * 1024,
    WHY_BYTES = 256,
    FILE_LINE_BYTES = 64, /* of a file of the kernel */
    USUAL_NOBODY = 65534,
    STACK_BYTES = 256 * 1024,
};

#define NOT_A_USER ((uid_t)-1)

static struct {
    hz_serve_answer *answer; /* of the process */
    hz_serve_say *say;       /* the same */
    pthread_t thread;
    pid_t pid;               /* of the process that has the thread */
    pthread_key_t main_ends; /* its destructor tells that main ends */
    uid_t nobody;            /* what the kernel calls users that have no number in the namespace of
                                the process; NOT_A_USER: all have one */
    char text[ANSWER_BYTES]; /* the answer under way; no memory until one was written */
} service;

static void say_why(const char *what)
{
    char line[WHY_BYTES];
    const int error = errno;
    snprintf(line, sizeof line, "hz: HZ_CONTROL: %s: %s; this process takes no requests\n", what,
             strerror(error));
    service.say(line);
}

/* ---- answers -------------------------------------------------------------------------------- */

void hz_serve_begin(hz_text *answer, const char *allocator)
{
    hz_text_add(answer, "{\"protocol\":%d,\"pid\":%d,\"allocator\":\"%s\"", HZ_SERVE_PROTOCOL,
                (int)getpid(), allocator);
}

void hz_serve_refuse(hz_text *answer, const char *kind, const char *sentence)
{
    answer->length = 0;
    hz_text_add(answer, "{\"protocol\":%d,\"refused\":\"%s\",\"sentence\":", HZ_SERVE_PROTOCOL,
                kind);
    hz_text_add_quoted(answer, sentence);
    hz_text_add(answer, "}");
}

/* ---- one request ---------------------------------------------------------------------------- */

/* The user that the process has now: it may have dropped rights since its start. NULL: none is
 * refused. */
static const char *why_refused(int client)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    const bool is_known = getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    if (is_known && peer.uid == service.nobody)
        return "this process is in a user namespace, and the user that asks has no number there; "
               "ask from inside the namespace";
    if (is_known && (peer.uid == geteuid() || peer.uid == 0)) return NULL;
    return "only the user of the process, or root, may ask it";
}

static void make_answer(int client, char *request, ssize_t length, hz_text *answer)
{
    const char *refusal = why_refused(client);
    if (refusal != NULL) {
        hz_serve_refuse(answer, "user", refusal);
    } else if (length >= REQUEST_BYTES) {
        hz_serve_refuse(answer, "request", "the request is too long");
    } else {
        request[length] = '\0';
        service.answer(request, answer);
    }
    if (answer->length >= answer->size)
        hz_serve_refuse(answer, "request", "the answer is too long");
}

/* Enabled only where the thread waits for a client. */
static void cancellation_allow(int state)
{
    (void)pthread_setcancelstate(state, &state);
}

static void talk(int client)
{
    static char request[REQUEST_BYTES];
    const struct timeval patience = {PATIENCE_S, 0};
    hz_text answer = {service.text, sizeof service.text, 0};
    (void)setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    cancellation_allow(PTHREAD_CANCEL_ENABLE);
    const ssize_t length = recv(client, request, sizeof request, MSG_TRUNC);
    cancellation_allow(PTHREAD_CANCEL_DISABLE);
    if (length <= 0) return;
    make_answer(client, request, length, &answer);
    (void)send(client, answer.start, answer.length, MSG_NOSIGNAL);
}

/* While it is answered, what hz writes to stderr goes to the client, as a packet of its own: the
 * thread has no stderr, and hz may end the program with a message. */
static void serve_one(int client)
{
    (void)dup2(client, STDERR_FILENO);
    talk(client);
    (void)close(STDERR_FILENO);
    (void)close(client);
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Keeps stdin, stdout and stderr, which is needed to say_why. */
static bool descriptors_make_own(void)
{
    if (syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, UNSHARE) == 0) return true;
    say_why("Linux 5.9 or later is needed, for close_range");
    return false;
}

static void name_of_process(struct sockaddr_un *address, socklen_t *length)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    const int name = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "hz-control-%d",
                              (int)getpid());
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)name);
}

static int listener_make(void)
{
    struct sockaddr_un address;
    socklen_t length;
    const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const int listener = fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    name_of_process(&address, &length);
    if (listener < 0 || bind(listener, (const struct sockaddr *)&address, length) != 0 ||
        listen(listener, WAITING_MOST) != 0) {
        say_why("no socket named hz-control-PID can be made");
        return -1;
    }
    (void)close(made);
    return listener;
}

/* Without memory or descriptors it waits before the next try. */
static bool is_worth_another_try(int error)
{
    if (error != EINTR && error != ECONNABORTED) (void)usleep(PAUSE_US);
    return error != EBADF && error != EINVAL && error != ENOTSOCK && error != EPERM;
}

/* In a namespace of users the kernel gives all that have no number there the same one, and so maybe
 * that of the process. Only a process with one thread may change its namespace. */
static uid_t nobody_here(void)
{
    char map[FILE_LINE_BYTES], nobody[FILE_LINE_BYTES];
    unsigned inside = 1, outside = 1, count = 0, number = USUAL_NOBODY;
    (void)hz_text_read("/proc/self/uid_map", map, sizeof map);
    (void)sscanf(map, "%u %u %u", &inside, &outside, &count);
    if (inside == 0 && outside == 0 && count == UINT32_MAX) return NOT_A_USER;
    (void)hz_text_read("/proc/sys/kernel/overflowuid", nobody, sizeof nobody);
    (void)sscanf(nobody, "%u", &number);
    return (uid_t)number;
}

static int client_await(int listener)
{
    cancellation_allow(PTHREAD_CANCEL_ENABLE);
    const int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    cancellation_allow(PTHREAD_CANCEL_DISABLE);
    return client;
}

static void *serve(void *unused)
{
    cancellation_allow(PTHREAD_CANCEL_DISABLE);
    (void)prctl(PR_SET_NAME, "hz-control");
    service.nobody = nobody_here();
    const int listener = descriptors_make_own() ? listener_make() : -1;
    for (int standard = STDIN_FILENO; standard <= STDERR_FILENO; standard++) {
        if (listener >= 0) (void)close(standard);
    }
    while (listener >= 0) {
        const int client = client_await(listener);
        if (client >= 0)
            serve_one(client);
        else if (!is_worth_another_try(errno))
            break;
    }
    return unused;
}

/* With a small stack, unless the program's thread-local data need more. */
static int thread_start(pthread_t *thread)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return pthread_create(thread, NULL, serve, NULL);
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int error = pthread_create(thread, &attributes, serve, NULL);
    pthread_attr_destroy(&attributes);
    if (error == EINVAL) error = pthread_create(thread, NULL, serve, NULL);
    return error;
}

/* The key may also have a value that a program stored there by mistake; and a child of fork has no
 * such thread. */
static void end_with_main(void *value)
{
    if (value != &service || service.pid != getpid()) return;
    pthread_cancel(service.thread);
    pthread_join(service.thread, NULL);
}

/* Where a thread other than main loads the library, nothing tells when main ends. */
static void watch_main(void)
{
    service.pid = getpid();
    if (syscall(SYS_gettid) != service.pid) return;
    if (pthread_key_create(&service.main_ends, end_with_main) == 0)
        (void)pthread_setspecific(service.main_ends, &service);
}

void hz_serve_start(hz_serve_answer *answer, hz_serve_say *say)
{
    sigset_t before;
    service.answer = answer;
    service.say = say;
    hz_own_signals_block(&before);
    errno = thread_start(&service.thread);
    hz_own_signals_restore(&before);
    if (errno == 0)
        watch_main();
    else
        say_why("no thread can be started");
}
