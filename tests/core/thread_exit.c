/*
 * The end of a thread: destructors of thread-specific data that allocate and free, blocks that
 * outlive their thread, threads that only free, and what all that leaves behind.
 */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 4, KEYS = 40, LEAST_STACK = 16 << 10 };
#define EXIT_IN_A_THREAD "--exit"

static pthread_key_t keys[KEYS];
static atomic_size_t destructor_runs;

static void run_thread(void *(*body)(void *), void *argument, void **result)
{
    const pthread_t thread = thread_start(body, argument);
    require(pthread_join(thread, result) == 0, "pthread_join failed");
}

/* ---- destructors ---------------------------------------------------------------------------- */

/* Frees its block, works a little on the heap, and sets its key again: it runs in each of the four
 * rounds. */
static void free_and_set_again(void *value)
{
    size_t number = 0;
    memcpy(&number, value, sizeof number);
    free(value);
    free(malloc(3000));
    char *block = calloc(1, 200 + number);
    memcpy(block, &number, sizeof number);
    (void)pthread_setspecific(keys[number], block);
    atomic_fetch_add(&destructor_runs, 1);
}

static void *set_all_keys(void *unused)
{
    for (size_t i = 0; i < KEYS; i++) {
        char *block = calloc(1, 100 + i);
        memcpy(block, &i, sizeof i);
        (void)pthread_setspecific(keys[i], block);
    }
    return unused;
}

CHECK("destructors of thread-specific data allocate and free in every round")
{
    for (size_t i = 0; i < KEYS; i++)
        require(pthread_key_create(&keys[i], free_and_set_again) == 0, "pthread_key_create failed");
    for (int i = 0; i < 200; i++) run_thread(set_all_keys, NULL, NULL);
    require(atomic_load(&destructor_runs) == (size_t)200 * KEYS * ROUNDS, "%zu runs",
            atomic_load(&destructor_runs));
}

static void *take_key_only(void *block)
{
    (void)pthread_setspecific(
        keys[0], block); /* its destructor makes this thread's first call of malloc or free */
    return NULL;
}

CHECK("threads whose first call comes in a destructor leak nothing")
{
    size_t settled = 0;
    require(pthread_key_create(&keys[0], free) == 0, "pthread_key_create failed");
    for (int i = 0; i < 4000; i++) {
        run_thread(take_key_only, malloc(500), NULL);
        settled = i == 1000 ? resident_bytes() : settled;
    }
    const size_t after = resident_bytes();
    require(after <= settled + 65536, "resident memory went from %zu to %zu bytes in 3000 threads",
            settled, after);
}

/* The C library keeps the message for the thread, and frees it after all destructors. */
static void *fail_to_load(void *unused)
{
    free(malloc(500));
    require(dlopen("/there/is/no/such/library", RTLD_NOW) == NULL, "dlopen found something");
    return unused;
}

CHECK("what the C library frees after all destructors leaks nothing")
{
    size_t settled = 0;
    for (int i = 0; i < 2000; i++) {
        run_thread(fail_to_load, NULL, NULL);
        settled = i == 500 ? resident_bytes() : settled;
    }
    const size_t after = resident_bytes();
    require(after <= settled + (1u << 20), "resident memory went from %zu to %zu bytes", settled,
            after);
}

static void *use_a_key_that_none_made(void *unused)
{
    static pthread_key_t forgotten; /* 0 */
    free(malloc(500));
    (void)pthread_setspecific(forgotten, (void *)0x1234);
    return unused;
}

CHECK("a thread-specific key that the program forgot to make does no harm")
{
    run_thread(use_a_key_that_none_made, NULL, NULL);
    free(malloc(500));
}

/* A program may store anything under any key, also under those that others have made. */
static void *store_under_every_key(void *unused)
{
    free(malloc(500));
    for (pthread_key_t key = 0; key < 8; key++) (void)pthread_setspecific(key, unused);
    return unused;
}

CHECK("what a program stores under the keys of others does no harm")
{
    for (int i = 0; i < 10; i++) run_thread(store_under_every_key, (void *)0x1234, NULL);
    free(malloc(500));
}

/* ---- blocks and their threads --------------------------------------------------------------- */

enum { BLOCKS = 3000 };

static void *allocate_many(void *argument)
{
    unsigned char **blocks = argument;
    for (size_t i = 0; i < BLOCKS; i++) {
        const size_t size = i % 100 == 0 ? 300000 : i % 2000 + 1;
        blocks[i] = malloc(size);
        memset(blocks[i], (int)(i & 0xff), size < 2001 ? size : 2000);
    }
    return NULL;
}

static void require_whole(unsigned char *const *blocks)
{
    for (size_t i = 0; i < BLOCKS; i++) {
        const size_t size = i % 100 == 0 ? 2000 : i % 2000 + 1;
        for (size_t at = 0; at < size; at++)
            require(blocks[i][at] == (i & 0xff), "byte %zu of block %zu changed", at, i);
    }
}

static void *free_many(void *argument)
{
    void **blocks = argument;
    for (size_t i = 0; i < BLOCKS; i++) free(blocks[i]);
    return NULL;
}

CHECK("blocks outlive their thread")
{
    static unsigned char *first[BLOCKS];
    static unsigned char *second[BLOCKS];
    for (int round = 0; round < 10; round++) {
        run_thread(allocate_many, first, NULL);
        run_thread(allocate_many, second, NULL);
        require_whole(first);
        (void)free_many(first);
        require_whole(second);
        run_thread(free_many, second, NULL);
    }
}

CHECK("threads that only free leak nothing")
{
    static unsigned char *blocks[BLOCKS];
    size_t settled = 0;
    for (int round = 0; round < 60; round++) {
        (void)allocate_many(blocks);
        run_thread(free_many, blocks, NULL);
        settled = round == 20 ? resident_bytes() : settled;
    }
    const size_t after = resident_bytes();
    require(after <= settled + (1u << 20), "resident memory went from %zu to %zu bytes", settled,
            after);
}

static void *realloc_all(void *argument)
{
    unsigned char **blocks = argument;
    for (size_t i = 0; i < BLOCKS; i++)
        blocks[i] = realloc(blocks[i], i % 100 == 0 ? 400000 : i % 2000 + 100);
    return NULL;
}

CHECK("blocks can be reallocated in another thread")
{
    static unsigned char *blocks[BLOCKS];
    run_thread(allocate_many, blocks, NULL);
    run_thread(realloc_all, blocks, NULL);
    require_whole(blocks);
    (void)free_many(blocks);
}

static void *leave_by_pthread_exit(void *argument)
{
    free(malloc(64));
    pthread_exit(malloc((size_t)(uintptr_t)argument));
}

CHECK("a thread's result may be a block of its own")
{
    for (size_t i = 1; i < 500; i++) {
        void *block = NULL;
        run_thread(leave_by_pthread_exit, (void *)(uintptr_t)(i * 37), &block);
        require(block != NULL, "thread %zu gave no block", i);
        memset(block, 1, i * 37);
        free(block);
    }
}

/* ---- the first thread ends first ------------------------------------------------------------ */

static void *end_the_process(void *first)
{
    (void)pthread_join(*(pthread_t *)first, NULL);
    for (size_t i = 0; i < 5000; i++) free(malloc(i));
    (void)!write(STDERR_FILENO, "whole", 5);
    exit(0);
}

static void leave_main_first(void *unused)
{
    static pthread_t first;
    (void)unused;
    first = pthread_self();
    (void)thread_start(end_the_process, &first);
    free(malloc(100));
    pthread_exit(NULL);
}

CHECK("the first thread may end before the others")
{
    ending result;
    run_apart(leave_main_first, NULL, 10, &result);
    require(result.signal == 0 && result.status == 0, "signal %d, status %d", result.signal,
            result.status);
    require(strcmp(result.said, "whole") == 0, "it said '%s'", result.said);
}

/* ---- small stacks --------------------------------------------------------------------------- */

static void *exit_at_once(void *unused)
{
    free(malloc(100));
    exit(0);
    return unused;
}

static int exit_in_a_thread_with_the_least_stack(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    require(pthread_attr_setstacksize(&attributes, LEAST_STACK) == 0, "a stack of %d is refused",
            LEAST_STACK);
    require(pthread_create(&thread, &attributes, exit_at_once, NULL) == 0, "pthread_create failed");
    (void)thread_end(thread);
    return 1;
}

static void start_with_statistics(void *unused)
{
    (void)unused;
    (void)setenv("HZ_STATS", "/dev/null", 1);
    (void)execl("/proc/self/exe", "thread_exit", EXIT_IN_A_THREAD, (char *)NULL);
    _exit(9);
}

CHECK("a thread with the least stack may end a program that writes statistics")
{
    ending result;
    run_apart(start_with_statistics, NULL, 10, &result);
    require(result.signal == 0 && result.status == 0, "signal %d, status %d, it said '%.200s'",
            result.signal, result.status, result.said);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], EXIT_IN_A_THREAD) == 0)
        return exit_in_a_thread_with_the_least_stack();
    return run_checks(argc, argv);
}
