/*
 * Programs under a limit of their address space: they start, they get NULL and ENOMEM at the end of
 * it, and go on. And a core file holds what is resident, not what is reserved.
 */
#include "check.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t mebibyte = 1u << 20;

typedef struct launch {
    size_t limit; /* bytes of address space */
    const char *program;
    const char *word; /* its argument */
} launch;

static void start(void *subject)
{
    const launch *this = subject;
    const struct rlimit limit = {this->limit, this->limit};
    require(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit: %s", strerror(errno));
    (void)dup2(STDERR_FILENO, STDOUT_FILENO);
    (void)execl(this->program, this->program, this->word, (char *)NULL);
    _exit(9);
}

static void require_runs(const char *program, const char *word, size_t limit, const char *answer)
{
    launch this = {limit, program, word};
    ending result;
    run_apart(start, &this, 20, &result);
    require(result.signal == 0 && result.status == 0,
            "%s under %zu KiB: signal %d, status %d, said '%.300s'", word, limit >> 10,
            result.signal, result.status, result.said);
    require(strcmp(result.said, answer) == 0, "%s under %zu KiB said '%.300s'", word, limit >> 10,
            result.said);
}

/* ---- the started programs ------------------------------------------------------------------- */

/* Fills the heap with blocks of one size, which make a list. The result is the number of blocks. */
static size_t exhaust(void ***list, size_t size)
{
    size_t count = 0;
    *list = NULL;
    errno = 0;
    for (void **block = malloc(size); block != NULL; block = malloc(size)) {
        memset(block, 0x6d, size);
        block[0] = *list;
        *list = block;
        count++;
    }
    require(errno == ENOMEM, "NULL with errno %d", errno);
    return count;
}

static void free_list(void **list)
{
    while (list != NULL) {
        void **next = list[0];
        free(list);
        list = next;
    }
}

static int exhaust_and_recover(size_t size, size_t least_bytes)
{
    void **list = NULL;
    size_t counts[3];
    for (size_t round = 0; round < COUNT(counts); round++) {
        counts[round] = exhaust(&list, size);
        free_list(list);
        require(counts[round] * size >= least_bytes, "round %zu had only %zu blocks of %zu bytes",
                round, counts[round], size);
    }
    require(counts[2] * 10 >= counts[0] * 9, "%zu blocks the first time, %zu the last", counts[0],
            counts[2]);
    return 0;
}

static void *exhaust_in_thread(void *size)
{
    void **list = NULL;
    for (int round = 0; round < 5; round++) {
        (void)exhaust(&list, (size_t)(uintptr_t)size);
        free_list(list);
    }
    return NULL;
}

static int exhaust_in_threads(void)
{
    pthread_t threads[4];
    pthread_attr_t attributes;
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, 256 * 1024);
    for (size_t i = 0; i < COUNT(threads); i++) {
        require(pthread_create(&threads[i], &attributes, exhaust_in_thread,
                               (void *)(uintptr_t)(64 << 2 * i)) == 0,
                "pthread_create failed");
    }
    for (size_t i = 0; i < COUNT(threads); i++) (void)thread_end(threads[i]);
    return exhaust_and_recover(1000, 8 * mebibyte);
}

/* Frees all blocks but the first ones of each 64 KiB, and returns these: a magazine that keeps them
 * holds a block of each span. */
static void **free_but_first_ones(void **list)
{
    void **last = NULL;
    while (list != NULL) {
        void **next = list[0];
        if (((uintptr_t)list & 0xffff) < 0x1000 &&
            (last == NULL || ((uintptr_t)list ^ (uintptr_t)last) >> 16 != 0)) {
            list[0] = last;
            last = list;
        } else {
            free(list);
        }
        list = next;
    }
    return last;
}

static void require_other_sizes(void)
{
    void *large = malloc(2 * mebibyte), *small = malloc(1000);
    require(large != NULL && small != NULL, "NULL where all is free");
}

static int exhaust_and_ask_for_another_size(void)
{
    void **list = NULL;
    (void)exhaust(&list, 16);
    free_list(free_but_first_ones(list));
    require_other_sizes();
    return 0;
}

static void **reserve;

static bool free_the_reserve(size_t size)
{
    (void)size;
    if (reserve == NULL) return false;
    free_list(reserve);
    reserve = NULL;
    return true;
}

static int exhaust_and_let_a_hook_free(void)
{
    void **list = NULL;
    void (*set)(bool (*)(size_t)); /* what it returns is of no use here */
    *(void **)&set = dlsym(RTLD_DEFAULT, "hz_on_out_of_memory");
    require(set != NULL, "no hz");
    (void)exhaust(&list, 16);
    void **first_ones = free_but_first_ones(list);
    require(malloc(64 * mebibyte) == NULL, "more than the limit");
    reserve = first_ones;
    set(free_the_reserve);
    require_other_sizes();
    return 0;
}

static int started(const char *word)
{
    if (strcmp(word, "--other") == 0) return exhaust_and_ask_for_another_size();
    if (strcmp(word, "--hook") == 0) return exhaust_and_let_a_hook_free();
    if (strcmp(word, "--small") == 0) return exhaust_and_recover(200, 24 * mebibyte);
    if (strcmp(word, "--large") == 0) return exhaust_and_recover(100000, 24 * mebibyte);
    return exhaust_in_threads();
}

/* ---- checks --------------------------------------------------------------------------------- */

CHECK_IN(60, "echo runs under a hundred limits from 32 MiB to 32 GiB")
{
    for (size_t i = 0; i < 100; i++) { /* 32 MiB to 32 GiB */
        const size_t octave = i / 10;
        const size_t limit =
            ((32 * mebibyte) << octave) + ((32 * mebibyte) << octave) / 10 * (i % 10);
        require_runs("/bin/echo", "hello", limit >> 16 << 16, "hello\n");
    }
}

CHECK_IN(60, "small blocks run out in order, and can be had again")
{
    require_runs("/proc/self/exe", "--small", 64 * mebibyte, "");
}
CHECK_IN(60, "large blocks run out in order, and can be had again")
{
    require_runs("/proc/self/exe", "--large", 64 * mebibyte, "");
}
CHECK_IN(60, "what a thread's magazine keeps serves a request of another size")
{
    (void)setenv("HZ_MAGAZINE_GROWTH", "full", 1);
    require_runs("/proc/self/exe", "--other", 16 * mebibyte, "");
}
CHECK_IN(60, "what a hook frees serves a request of another size")
{
    (void)setenv("HZ_MAGAZINE_GROWTH", "full", 1);
    require_runs("/proc/self/exe", "--hook", 16 * mebibyte, "");
}
CHECK_IN(60, "four threads run out of memory in order")
{
    require_runs("/proc/self/exe", "--threads", 96 * mebibyte, "");
}

/* Bytes of the mappings that the kernel would write to a core file: touched, and not marked as no
 * part of it ("dd"). */
static size_t core_bytes(void)
{
    char line[512];
    size_t total = 0;
    size_t size = 0;
    size_t anonymous = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    require(file != NULL, "cannot read /proc/self/smaps");
    while (fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "Size: %zu", &size);
        (void)sscanf(line, "Anonymous: %zu", &anonymous);
        if (strncmp(line, "VmFlags:", 8) == 0 && anonymous > 0 && strstr(line, " dd") == NULL)
            total += size << 10;
    }
    (void)fclose(file);
    return total;
}

CHECK("a core file holds what is resident and at most 16 MiB more")
{
    static char *blocks[40000];
    for (size_t i = 0; i < COUNT(blocks); i++) {
        const size_t size = i % 1000 * 3 + 1;
        blocks[i] = malloc(size);
        memset(blocks[i], 1, size);
    }
    const size_t core = core_bytes();
    const size_t resident = resident_bytes();
    require(core <= resident + 16 * mebibyte, "a core file would have %zu bytes, %zu are resident",
            core, resident);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strncmp(argv[1], "--", 2) == 0) return started(argv[1]);
    return run_checks(argc, argv);
}
