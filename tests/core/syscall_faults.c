/*
 * The memory system calls fail, at any point: the allocator says so with NULL and ENOMEM, breaks
 * nothing, and goes on when the system recovers.
 *
 * A victim process runs under a seccomp filter that sends its memory calls to a supervisor (its
 * parent), which lets each one pass or makes it fail. TEST_FAULT_POINTS is the number of points at
 * which the failures begin.
 */
#include "check.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ALL_CALLS = -1, SLOTS = 300, STEPS = 2000 };

/* What the supervisor does; the victim may change `failing`. */
typedef struct plan {
    int call;               /* the number of the system call to fail, or ALL_CALLS */
    size_t first;           /* the first call that fails, counted from 1 */
    int at_random;          /* from there on fail every second call at random, not each */
    size_t larger_than;     /* of mmap: fail only requests above this many bytes */
    volatile int failing;   /* 0: let everything pass */
    volatile size_t failed; /* calls that failed */
    size_t seen;            /* calls that counted */
    uint64_t state;         /* of the generator */
} plan;

/* ---- the filter ----------------------------------------------------------------------------- */

static int install_filter(void)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munmap, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    };
    const struct sock_fprog filter = {COUNT(program), program};
    require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs: %s", strerror(errno));
    const long listener =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    require(listener >= 0, "seccomp: %s", strerror(errno));
    return (int)listener;
}

/* The control message that carries one descriptor. */
typedef union carrier {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
} carrier;

static void send_descriptor(int channel, int descriptor)
{
    char byte = 0;
    carrier control = {.bytes = {0}};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    require(sendmsg(channel, &message, 0) == 1, "sendmsg: %s", strerror(errno));
}

static int receive_descriptor(int channel)
{
    char byte = 0;
    int descriptor = -1;
    carrier control = {.bytes = {0}};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    require(recvmsg(channel, &message, 0) == 1, "the victim could not install its filter");
    memcpy(&descriptor, CMSG_DATA(&control.header), sizeof descriptor);
    return descriptor;
}

/* ---- the supervisor ------------------------------------------------------------------------- */

static int fails(plan *this, const struct seccomp_data *call)
{
    const int counts = this->call == ALL_CALLS || this->call == call->nr;
    if (!this->failing || !counts || (call->nr == SYS_mmap && call->args[1] <= this->larger_than))
        return 0;
    if (++this->seen < this->first || (this->at_random && random_next(&this->state) % 2 == 0))
        return 0;
    this->failed++;
    return 1;
}

static void answer_one(int listener, plan *this)
{
    struct seccomp_notif question;
    memset(&question, 0, sizeof question);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &question) != 0)
        return; /* the victim died while it asked */
    struct seccomp_notif_resp reply = {.id = question.id,
                                       .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    if (fails(this, &question.data)) {
        reply.flags = 0;
        reply.error = -ENOMEM;
    }
    (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
}

static void supervise(int listener, plan *this)
{
    struct pollfd watched = {listener, POLLIN, 0};
    while (poll(&watched, 1, -1) > 0 && (watched.revents & POLLIN) != 0) answer_one(listener, this);
}

/* Runs `victim` in a child under the plan. The child exits with 0 when all was well with it. */
static int run_victim(plan *this, void (*victim)(plan *))
{
    int channel[2];
    int status = 0;
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0, "socketpair: %s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        send_descriptor(channel[1], install_filter());
        (void)close(channel[0]);
        (void)close(channel[1]);
        victim(this);
        _exit(0);
    }
    (void)close(channel[1]);
    const int listener = receive_descriptor(channel[0]);
    supervise(listener, this);
    (void)close(listener);
    (void)close(channel[0]);
    require(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
    return status;
}

static plan *new_plan(int call, size_t first, int at_random)
{
    plan *this =
        mmap(NULL, sizeof *this, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(this != MAP_FAILED, "mmap: %s", strerror(errno));
    *this =
        (plan){.call = call, .first = first, .at_random = at_random, .failing = 1, .state = first};
    return this;
}

/* ---- the victim ----------------------------------------------------------------------------- */

typedef struct slot {
    unsigned char *block;
    size_t size;
} slot;

static size_t some_size(uint64_t draw)
{
    static const size_t most[] = {256, 256, 2048, 30000, 300000, 1000000};
    return (draw >> 8) % most[draw % COUNT(most)] + 1;
}

static void mark(const slot *this)
{
    this->block[0] = (unsigned char)this->size;
    this->block[this->size - 1] = (unsigned char)this->size;
}

static void require_marked(const slot *this)
{
    require(this->block[0] == (unsigned char)this->size || this->size == 1,
            "the head of %zu bytes changed", this->size);
    require(this->block[this->size - 1] == (unsigned char)this->size,
            "the tail of %zu bytes changed", this->size);
}

static void require_zeroes(const unsigned char *block, size_t size)
{
    for (size_t i = 0; i < size; i += i < 4096 ? 1 : 509)
        require(block[i] == 0, "byte %zu of calloc(1, %zu) is %d", i, size, block[i]);
}

static unsigned char *take(uint64_t draw, size_t size)
{
    if (draw % 5 == 0) {
        unsigned char *block = calloc(1, size);
        if (block != NULL) {
            require_zeroes(block, size);
            memset(block, 0xd1, size); /* so that a calloc that trusts a failed purge is seen */
        }
        return block;
    }
    return draw % 5 == 1 ? memalign(4096, size) : malloc(size);
}

static void refill(slot *this, uint64_t draw)
{
    this->size = some_size(draw);
    errno = 0;
    this->block = take(draw >> 40, this->size);
    require(this->block != NULL || errno == ENOMEM, "NULL with errno %d", errno);
    if (this->block != NULL) mark(this);
}

static void resize(slot *this, uint64_t draw)
{
    const size_t size = some_size(draw);
    errno = 0;
    unsigned char *moved = realloc(this->block, size);
    if (moved == NULL) {
        require(errno == ENOMEM, "realloc gave NULL with errno %d", errno);
        require_marked(this);
        return;
    }
    this->block = moved;
    require(moved[0] == (unsigned char)this->size || this->size == 1 || size == 1,
            "realloc lost the contents");
    this->size = size;
    mark(this);
}

static void release(slot *this)
{
    require_marked(this);
    errno = 1234;
    free(this->block);
    require(errno == 1234, "free of %zu bytes set errno to %d", this->size, errno);
    this->block = NULL;
}

static void churn(slot *slots, uint64_t state)
{
    for (size_t i = 0; i < STEPS; i++) {
        const uint64_t draw = random_next(&state);
        slot *this = &slots[(draw >> 48) % SLOTS];
        if (this->block == NULL)
            refill(this, draw);
        else if (draw % 4 == 0)
            resize(this, draw >> 2);
        else
            release(this);
    }
}

static void free_all(slot *slots)
{
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].block != NULL) release(&slots[i]);
}

static void require_recovered(void)
{
    static void *blocks[400];
    for (size_t i = 0; i < COUNT(blocks); i++) {
        const size_t size = (i * i * 37) % 60000 + 1;
        blocks[i] = malloc(size);
        require(blocks[i] != NULL, "after recovery there are no %zu bytes", size);
        memset(blocks[i], 1, size);
    }
    for (size_t i = 0; i < COUNT(blocks); i++) free(blocks[i]);
}

static void victim_alone(plan *this)
{
    static slot slots[SLOTS];
    churn(slots, this->first);
    this->failing = 0;
    free_all(slots);
    require_recovered();
}

static void *churn_in_thread(void *argument)
{
    slot slots[SLOTS];
    memset(slots, 0, sizeof slots);
    churn(slots, (uint64_t)(uintptr_t)argument);
    free_all(slots);
    return NULL;
}

static void victim_with_threads(plan *this)
{
    pthread_t threads[4];
    this->failing = 0; /* starting a thread is the C library's business */
    for (size_t i = 0; i < COUNT(threads); i++) {
        threads[i] = thread_start(churn_in_thread, (void *)(uintptr_t)(this->first * 10 + i));
    }
    this->failing = 1;
    for (size_t i = 0; i < COUNT(threads); i++) (void)thread_end(threads[i]);
    this->failing = 0;
    require_recovered();
}

static void victim_that_must_not_grow(plan *this)
{
    static slot slots[SLOTS];
    size_t settled = 0;
    for (int round = 0; round < 6; round++) {
        this->failing = 1;
        churn(slots, (uint64_t)round);
        this->failing = 0;
        free_all(slots);
        (void)malloc_trim(0);
        settled = round == 1 ? resident_bytes() : settled;
    }
    const size_t after = resident_bytes();
    require(after < settled + (8u << 20), "resident memory went from %zu to %zu bytes", settled,
            after);
}

/* Under hardening malloc(0) needs pages that may not be touched: without them it keeps nothing. */
static void victim_that_asks_for_no_bytes(plan *this)
{
    enum { TRIES = 5000, MOST_BYTES = 8 << 20 };
    const size_t before = mapped_bytes();
    (void)this;
    for (size_t i = 0; i < TRIES; i++) {
        errno = 0;
        require(malloc(0) == NULL && errno == ENOMEM, "call %zu, errno %d", i, errno);
    }
    const size_t after = mapped_bytes();
    require(after < before + MOST_BYTES, "%zu bytes before and %zu after", before, after);
}

/* ---- checks --------------------------------------------------------------------------------- */

/* The result is the number of calls that failed. */
static size_t require_survival(int call, size_t first, int at_random, void (*victim)(plan *))
{
    plan *this = new_plan(call, first, at_random);
    const int status = run_victim(this, victim);
    const size_t failed = this->failed;
    require(status == 0, "calls failed from number %zu on (%zu did): wait status %d (signal %d)",
            first, failed, status, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    (void)munmap(this, sizeof *this);
    return failed;
}

static void fail_from_each_point(int call, void (*victim)(plan *))
{
    const size_t points = number_chosen("TEST_FAULT_POINTS", 12);
    size_t failed = 0;
    for (size_t first = 1; first <= points; first++)
        failed += require_survival(call, first <= 8 ? first : first * first / 8, 0, victim);
    require(call != ALL_CALLS || failed > 0, "no call failed: the filter is not in effect");
}

static void fail_at_random(int call, void (*victim)(plan *))
{
    const size_t points = number_chosen("TEST_FAULT_POINTS", 12);
    for (size_t seed = 1; seed <= points / 3; seed++) (void)require_survival(call, seed, 1, victim);
}

CHECK_IN(300, "each memory call, and all of them, may fail from any call on")
{
    static const int calls[] = {SYS_mmap,    SYS_munmap,   SYS_mremap,
                                SYS_madvise, SYS_mprotect, ALL_CALLS};
    for (size_t i = 0; i < COUNT(calls); i++) fail_from_each_point(calls[i], victim_alone);
}
CHECK_IN(120, "all memory calls may fail under four threads")
{
    fail_from_each_point(ALL_CALLS, victim_with_threads);
}
CHECK_IN(120, "every second call at random may fail")
{
    fail_at_random(ALL_CALLS, victim_alone);
}
CHECK_IN(120, "every second call at random may fail under four threads")
{
    fail_at_random(ALL_CALLS, victim_with_threads);
}
CHECK_IN(60, "a malloc(0) that fails leaks nothing")
{
    const char *step = getenv("HZ_HARDENING");
    if (step == NULL || strcmp(step, "off") == 0) return; /* there malloc(0) is a small block */
    const size_t failed = require_survival(SYS_mprotect, 1, 0, victim_that_asks_for_no_bytes);
    require(failed > 0, "no call failed: the filter is not in effect");
}
CHECK_IN(120, "failures leak nothing")
{
    fail_at_random(ALL_CALLS, victim_that_must_not_grow);
}

/* ---- from the start of a process ------------------------------------------------------------ */

static const char victim_word[] = "--victim";

static void victim_that_starts(plan *this)
{
    char self[] = "/proc/self/exe";
    char word[sizeof victim_word];
    char *const arguments[] = {self, word, NULL};
    (void)this;
    memcpy(word, victim_word, sizeof word);
    (void)execv(self, arguments);
    _exit(9);
}

/* The started program: memory within the limit must be had, beyond it must fail in order. */
static int start_small(void)
{
    static slot slots[SLOTS];
    churn(slots, 5);
    free_all(slots);
    free(malloc(100));
    return 0;
}

CHECK_IN(120, "a process starts where large mappings are refused")
{
    for (size_t limit = (size_t)1 << 40; limit >= (size_t)1 << 22; limit /= 4) {
        plan *this = new_plan(SYS_mmap, 1, 0);
        this->larger_than = limit;
        const int status = run_victim(this, victim_that_starts);
        require(status == 0, "no mapping above %zu bytes: wait status %d", limit, status);
        (void)munmap(this, sizeof *this);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], victim_word) == 0) return start_small();
    return run_checks(argc, argv);
}
