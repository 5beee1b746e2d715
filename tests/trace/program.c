/*
 * A program that does one thing, for what a recording must bear: `program MODE`.
 */
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 1000, CHILD_BLOCKS = 3000, SIZE = 4321, THREADS = 300, ROUND_NS = 1000000 };

/* Blocks of one size, which nothing else asks for. */
static void allocate(int count)
{
    for (int i = 0; i < count; i++) {
        void *volatile block = malloc(SIZE);
        free(block);
    }
}

static void leave_by_exit(void)
{
    allocate(BLOCKS);
    _exit(7);
}

static void close_all(void)
{
    for (int fd = 0; fd < 100; fd++) (void)close(fd);
}

/* It has nothing left from which a recorder could learn anything. */
static void strip(void)
{
    const struct rlimit none = {0, 0};
    (void)clearenv();
    (void)setrlimit(RLIMIT_NOFILE, &none);
    close_all();
    leave_by_exit();
}

static void crash(void)
{
    allocate(BLOCKS);
    (void)raise(SIGSEGV);
}

static void be_killed(void)
{
    allocate(BLOCKS);
    (void)raise(SIGKILL);
}

static void wait_for(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) abort();
}

static void fork_child(void)
{
    void *volatile inherited = malloc(SIZE);
    const pid_t child = fork();
    if (child == 0) {
        free(inherited);
        allocate(CHILD_BLOCKS);
        exit(0);
    }
    allocate(BLOCKS);
    wait_for(child);
}

/* The C library is not told of this fork, and calls no handlers. */
static void fork_raw(void)
{
    allocate(1);
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        allocate(CHILD_BLOCKS);
        _exit(0);
    }
    allocate(BLOCKS);
    wait_for(child);
}

static void execute(void)
{
    allocate(CHILD_BLOCKS);
    (void)execl("/proc/self/exe", "program", "exit", NULL);
}

static void *run_thread(void *argument)
{
    allocate(10);
    return argument;
}

static void come_and_go(void)
{
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_thread, NULL) != 0) abort();
        pthread_join(thread, NULL);
    }
}

/* The same until it is ended; says when it has begun. */
static void keep_coming(void)
{
    (void)puts("begun");
    (void)fflush(stdout);
    for (;;) come_and_go();
}

static _Atomic(void *) exchanged[64];

static void *free_exchanged(void *stop)
{
    while (!atomic_load((atomic_bool *)stop))
        for (int i = 0; i < 64; i++) free(atomic_exchange(&exchanged[i], NULL));
    return NULL;
}

/* One thread is alone and calls densely; then a second one frees its blocks while it goes on. */
static void be_joined(void)
{
    atomic_bool stop = false;
    pthread_t second;
    allocate(BLOCKS);
    for (int i = 0; i < 64; i++) atomic_store(&exchanged[i], malloc(SIZE));
    if (pthread_create(&second, NULL, free_exchanged, &stop) != 0) abort();
    for (int i = 0; i < THREADS * 64; i++) free(atomic_exchange(&exchanged[i % 64], malloc(SIZE)));
    atomic_store(&stop, true);
    pthread_join(second, NULL);
    for (int i = 0; i < 64; i++) free(exchanged[i]);
}

static void on_signal(int number)
{
    (void)number;
    allocate(1);
}

/* The handler allocates while the program is outside of malloc. */
static void allocate_in_handlers(void)
{
    (void)signal(SIGUSR1, on_signal);
    for (int i = 0; i < BLOCKS; i++) (void)raise(SIGUSR1);
}

static void call_all(void)
{
    void *block = NULL;
    void *volatile kept[8];
    kept[0] = malloc(101);
    kept[1] = calloc(3, 101);
    kept[2] = aligned_alloc(256, 512);
    kept[3] = memalign(128, 102);
    if (posix_memalign(&block, 512, 103) != 0) abort();
    kept[4] = block;
    kept[5] = valloc(104);
    kept[6] = pvalloc(105);
    kept[7] = realloc(NULL, 106);
    kept[0] = realloc(kept[0], 100000);
    kept[1] = reallocarray(kept[1], 7, 1000);
    void *volatile refused = realloc(kept[2], (size_t)1 << 60);
    if (refused != NULL) abort();
    for (int i = 0; i < 8; i++) free(kept[i]);
    free(NULL);
}

/* Until it is ended; says when it has begun. */
static void go_on(void)
{
    void *volatile early = malloc(SIZE);
    (void)puts("begun");
    (void)fflush(stdout);
    for (;;) {
        void *volatile larger = realloc(early, 2 * SIZE);
        early = larger;
        allocate(10);
        (void)nanosleep(&(struct timespec){.tv_nsec = ROUND_NS}, NULL);
    }
}

/* A child that has no descriptors goes on. Its parent says which process it is when the child has
 * closed them, among them one end of a pipe. */
static void go_on_alone(void)
{
    int ends[2];
    char end;
    if (pipe(ends) != 0) abort();
    const pid_t child = fork();
    if (child > 0) {
        (void)close(ends[1]);
        if (read(ends[0], &end, 1) != 0) abort();
        (void)printf("%d\n", (int)child);
        exit(0);
    }
    allocate(1);
    close_all();
    go_on();
}

/* Many children that do little; all are waited for. */
static void fork_many(void)
{
    for (int i = 0; i < BLOCKS; i++) {
        const pid_t child = fork();
        if (child == 0) {
            allocate(1);
            _exit(0);
        }
        wait_for(child);
    }
    allocate(BLOCKS);
}

/* Nothing can be written to a file any more, and no path is what it was. */
static void lock_up(void)
{
    const struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) abort();
    (void)!chroot("/sys"); /* where this user may */
    allocate(BLOCKS);
}

/* Long enough for a megabyte of log; then it ends well. */
static void fill(void)
{
    for (int i = 0; i < 300; i++) {
        allocate(BLOCKS);
        (void)nanosleep(&(struct timespec){.tv_nsec = ROUND_NS}, NULL);
    }
    exit(9);
}

int main(int argc, char **argv)
{
    const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {
        {"exit", leave_by_exit},  {"crash", crash},       {"killed", be_killed},
        {"fork", fork_child},     {"raw_fork", fork_raw}, {"exec", execute},
        {"threads", come_and_go}, {"all", call_all},      {"handlers", allocate_in_handlers},
        {"go_on", go_on},         {"fill", fill},         {"strip", strip},
        {"alone", go_on_alone},   {"many", fork_many},    {"lock_up", lock_up},
        {"joined", be_joined},    {"tasks", keep_coming},
    };
    for (size_t i = 0; argc == 2 && i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run();
            return 0;
        }
    return 2;
}
