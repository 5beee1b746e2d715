/*
 * The thread that answers requests from other processes (HZ_CONTROL=1). Stands alone, so that the
 * agent has it, too.
 *
 * Who may ask is what the kernel decides about reading this process's memory: same real, effective
 * and saved user, same namespace of users or rights over it, nothing that was dropped. The socket
 * has a random name, and each request begins with a random key. Name and key are the label of a
 * memory file in the thread's table of descriptors, /proc/PID/task/TID/fd: there the kernel shows
 * them to those that may read the memory, and to no other. So no other process can have the name
 * before, and none can ask without the key.
 *
 * The thread has a table of descriptors of its own (CLOSE_RANGE_UNSHARE). So the program never sees
 * the socket: no descriptor has another number because of it, a daemon that closes all of its own
 * does not close it, and neither a fork nor an exec passes it on. Everything else in the new table
 * is closed, as it would keep the program's pipes and sockets open. A fork's child has no such
 * thread. An exec ends the thread.
 *
 * CLIENTS_MOST clients may be connected that have not asked yet, or fewer where descriptors are
 * scarce; with one more the first of them is closed. Only clients of the process's user and of root
 * count: others are closed at once.
 *
 * The thread ends with main, as a process whose main ends by pthread_exit lives until its last
 * thread has ended. It may be cancelled only where it waits: there it holds nothing.
 */
#include "serve.h"

#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "own_signals.h"

#ifndef SYS_close_range
#define SYS_close_range 436 /* on every processor */
#endif

enum {
    UNSHARE = 2,       /* CLOSE_RANGE_UNSHARE */
    NOEXEC_SEAL = 0x8, /* MFD_NOEXEC_SEAL, which a kernel may demand (Linux 6.3 or later) */
    PAUSE_US = 10000,
    WAITING_MOST = 64,
    CLIENTS_MOST = 16,
    KEY_LENGTH = 32,
    LABEL_BYTES = 128,
    REQUEST_BYTES = 4096,
    ANSWER_BYTES = 128 * 1024,
    WHY_BYTES = 256,
    STACK_BYTES = 256 * 1024,
};

static struct {
    hz_serve_answer *answer; /* of the process */
    const hz_levers *levers; /* the same */
    hz_serve_say *say;       /* the same */
    pthread_t thread;
    pid_t pid;                             /* of the process that has the thread */
    pthread_key_t main_ends;               /* its destructor tells that main ends */
    char key[KEY_LENGTH + 1];              /* what a request begins with, and a newline */
    struct pollfd waits[1 + CLIENTS_MOST]; /* the listener; clients that have not asked yet */
    nfds_t wait_count;                     /* how many of them there are */
    char request[REQUEST_BYTES + 1];       /* the one that is answered */
    char text[ANSWER_BYTES];               /* the answer; no memory until one was written */
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
    hz_text_add(answer, "{\"protocol\":%d,\"pid\":%d,\"governed\":%s,\"allocator\":\"%s\"",
                HZ_SERVE_PROTOCOL, (int)getpid(), hz_lease_is_on() ? "true" : "false", allocator);
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

/* Looks at all of the key: how long it takes tells nothing. */
static bool has_key(const char *request, ssize_t length)
{
    unsigned difference = 0;
    if (length <= KEY_LENGTH) return false;
    for (size_t i = 0; i <= KEY_LENGTH; i++)
        difference |= (unsigned char)(request[i] ^ service.key[i]);
    return difference == 0;
}

static void make_answer_to(char *request, hz_text *answer)
{
    static const char govern[] = "govern ";
    char *lines = request;
    const char *word = strsep(&lines, "\n");
    if (strcmp(word, "set") == 0)
        hz_lease_set(service.levers, lines, answer);
    else if (strncmp(word, govern, sizeof govern - 1) == 0)
        hz_lease_govern(service.levers, word + sizeof govern - 1, lines, answer);
    else if (!service.answer(word, answer))
        hz_serve_refuse(answer, "request", "this process understands stats, trim, set and govern");
}

static void make_answer(ssize_t length, hz_text *answer)
{
    if (!has_key(service.request, length)) {
        hz_serve_refuse(answer, "user", "a request begins with the key of this process");
    } else if (length > REQUEST_BYTES) {
        hz_serve_refuse(answer, "request", "the request is too long");
    } else {
        service.request[length] = '\0';
        make_answer_to(service.request + KEY_LENGTH + 1, answer);
    }
    if (answer->length >= answer->size)
        hz_serve_refuse(answer, "request", "the answer is too long");
}

/* Nothing waits here: the request has come, and there is room for one answer in any socket. */
static void talk(int client)
{
    hz_text answer = {service.text, sizeof service.text, 0};
    const ssize_t length = recv(client, service.request, REQUEST_BYTES, MSG_TRUNC | MSG_DONTWAIT);
    if (length <= 0) return;
    make_answer(length, &answer);
    (void)send(client, answer.start, answer.length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- clients -------------------------------------------------------------------------------- */

static void client_leave(nfds_t client)
{
    (void)close(service.waits[client].fd);
    service.wait_count--;
    memmove(&service.waits[client], &service.waits[client + 1],
            (service.wait_count - client) * sizeof service.waits[0]);
}

/* Others would only be in the way of those that may ask. The user that the process has now, as it
 * may have dropped rights since its start, but for good: a fork's child has the key in its memory,
 * too, and that user may read it there. */
static bool may_stay(int client)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    uid_t real, effective, saved;
    return getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           getresuid(&real, &effective, &saved) == 0 &&
           (peer.uid == 0 || (peer.uid == real && peer.uid == effective && peer.uid == saved));
}

/* Without memory or descriptors the first client goes, or the next try waits. poll's EINVAL is a
 * limit of descriptors that has become lower than there are clients. */
static bool is_worth_another_try(int error)
{
    const bool is_short = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
    if (service.wait_count > 1 && (is_short || error == EINVAL)) {
        client_leave(1);
        return true;
    }
    if (is_short) (void)usleep(PAUSE_US);
    return error != EBADF && error != EINVAL && error != EPERM && error != ENOSYS;
}

static bool client_receive(void)
{
    const int client = accept4(service.waits[0].fd, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0) return is_worth_another_try(errno);
    if (!may_stay(client)) {
        (void)close(client);
        return true;
    }
    if (service.wait_count > CLIENTS_MOST) client_leave(1);
    service.waits[service.wait_count++] = (struct pollfd){.fd = client, .events = POLLIN};
    return true;
}

/* Enabled only where the thread waits. */
static void cancellation_allow(int state)
{
    (void)pthread_setcancelstate(state, &state);
}

/* Waits for clients and for what they ask; false: no more can come. */
static bool clients_attend(void)
{
    cancellation_allow(PTHREAD_CANCEL_ENABLE);
    const int ready = poll(service.waits, service.wait_count, hz_lease_wait_ms());
    const int error = errno;
    cancellation_allow(PTHREAD_CANCEL_DISABLE);
    hz_lease_end_in_time();
    if (ready < 0) return is_worth_another_try(error);
    for (nfds_t client = service.wait_count; --client > 0;) {
        if (service.waits[client].revents == 0) continue;
        talk(service.waits[client].fd);
        client_leave(client);
    }
    return service.waits[0].revents == 0 || client_receive();
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Keeps stderr, which is needed to say_why. */
static bool descriptors_make_own(void)
{
    if (syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, UNSHARE) != 0) {
        say_why("Linux 5.9 or later is needed, for close_range");
        return false;
    }
    (void)close(STDIN_FILENO);
    (void)close(STDOUT_FILENO);
    return true;
}

static bool label_show(const char *label)
{
    return memfd_create(label, MFD_CLOEXEC | NOEXEC_SEAL) >= 0 ||
           (errno == EINVAL && memfd_create(label, MFD_CLOEXEC) >= 0);
}

/* Draws a name and a key; returns how long the address is, 0 where nothing can be drawn. */
static socklen_t address_draw(struct sockaddr_un *address, char *label, size_t size)
{
    uint64_t drawn[3];
    char *name = address->sun_path + 1;
    if (getrandom(drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) return 0;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length =
        snprintf(name, sizeof address->sun_path - 1, "hz-control-%016" PRIx64, drawn[0]);
    (void)snprintf(service.key, sizeof service.key, "%016" PRIx64 "%016" PRIx64, drawn[1],
                   drawn[2]);
    (void)snprintf(label, size, "%s-%s", name, service.key);
    service.key[KEY_LENGTH] = '\n';
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* The label is descriptor 1, as 0 and 1 are free before. The listener ends up in the place of
 * stderr: what is written there fails by ENOTCONN, which tells hz_os_write_stderr to look for the
 * program's own. */
static bool listener_make(void)
{
    struct sockaddr_un address;
    char label[LABEL_BYTES];
    const socklen_t length = address_draw(&address, label, sizeof label);
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (length == 0 || listener < 0 ||
        bind(listener, (const struct sockaddr *)&address, length) != 0 ||
        listen(listener, WAITING_MOST) != 0 || !label_show(label)) {
        say_why("no socket can be made");
        return false;
    }
    service.waits[0] = (struct pollfd){.fd = dup2(listener, STDERR_FILENO), .events = POLLIN};
    service.wait_count = 1;
    (void)close(listener);
    return true;
}

static void *serve(void *unused)
{
    cancellation_allow(PTHREAD_CANCEL_DISABLE);
    (void)prctl(PR_SET_NAME, "hz-control");
    if (descriptors_make_own() && listener_make())
        while (clients_attend()) continue;
    hz_lease_end();
    return unused;
}

static int thread_locals_add(struct dl_phdr_info *object, size_t size, void *bytes)
{
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_TLS) *(size_t *)bytes += object->dlpi_phdr[i].p_memsz;
    return 0;
}

/* With a small stack, which the C library shares with the program's thread-local data. */
static int thread_start(pthread_t *thread)
{
    pthread_attr_t attributes;
    size_t bytes = STACK_BYTES;
    (void)dl_iterate_phdr(thread_locals_add, &bytes);
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, bytes);
    const int error = pthread_create(thread, &attributes, serve, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* The key may also have a value that a program stored there by mistake; and a child of fork has no
 * such thread. */
static void end_with_main(void *value)
{
    if (value != &service || service.pid != getpid()) return;
    pthread_cancel(service.thread);
    pthread_join(service.thread, NULL);
    hz_lease_end();
}

/* Where a thread other than main loads the library, nothing tells when main ends. */
static void watch_main(void)
{
    service.pid = getpid();
    if (syscall(SYS_gettid) != service.pid) return;
    if (pthread_key_create(&service.main_ends, end_with_main) == 0)
        (void)pthread_setspecific(service.main_ends, &service);
}

void hz_serve_start(hz_serve_answer *answer, const hz_levers *levers, hz_serve_say *say)
{
    sigset_t before;
    service.answer = answer;
    service.levers = levers;
    service.say = say;
    hz_own_signals_block(&before);
    errno = thread_start(&service.thread);
    hz_own_signals_restore(&before);
    if (errno == 0)
        watch_main();
    else
        say_why("no thread can be started");
}
