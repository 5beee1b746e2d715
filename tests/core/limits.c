/*
 * Programs with a limit: what hz maps counts against it, and hz maps no more than it needs. So a
 * limit that is set while the program runs leaves room for others, and a large block may take
 * nearly all of it.
 */
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static const size_t mebibyte = 1u << 20;
static const size_t gibibyte = 1u << 30;

/* Bytes of all mappings. */
static size_t mapped_bytes(void)
{
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    require(file != NULL && fscanf(file, "%zu", &pages) == 1, "cannot read /proc/self/statm");
    (void)fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void limit_to(int resource, size_t bytes)
{
    const struct rlimit limit = {bytes, bytes};
    require(setrlimit(resource, &limit) == 0, "setrlimit: %s", strerror(errno));
}

static void *do_nothing(void *argument)
{
    return argument;
}

CHECK("threads start under a limit that is set late")
{
    pthread_t threads[16];
    free(malloc(100));
    limit_to(RLIMIT_AS, gibibyte);
    for (size_t i = 0; i < COUNT(threads); i++) threads[i] = thread_start(do_nothing, NULL);
    for (size_t i = 0; i < COUNT(threads); i++) (void)thread_end(threads[i]);
}

CHECK("malloc gives what a limit that is set late allows, and no more")
{
    size_t given = 0;
    free(malloc(100));
    limit_to(RLIMIT_AS, gibibyte);
    while (malloc(10 * mebibyte) != NULL) given += 10 * mebibyte;
    require(given <= gibibyte && given >= gibibyte / 10 * 9, "malloc gave %zu bytes", given);
}

/* ---- limits that a program starts with ------------------------------------------------------- */

typedef struct launch {
    size_t limit; /* bytes of address space */
    const char *word;
} launch;

static void start(void *subject)
{
    const launch *this = subject;
    limit_to(RLIMIT_AS, this->limit);
    (void)execl("/proc/self/exe", "limits", this->word, (char *)NULL);
    _exit(9);
}

static void require_runs(const char *word, size_t limit)
{
    launch this = {limit, word};
    ending result;
    run_apart(start, &this, 20, &result);
    require(result.signal == 0 && result.status == 0, "%s: signal %d, status %d, said '%.300s'",
            word, result.signal, result.status, result.said);
}

CHECK("3 GiB can be had of 4 GiB of address space")
{
    require_runs("--three-gibibytes", 4 * gibibyte);
}

CHECK("a program starts in 16 MiB of address space")
{
    require_runs("--half-a-mebibyte", 16 * mebibyte);
}

CHECK("a huge limit is no reason to map much")
{
    require_runs("--little", (size_t)127 << 40);
}

static int started(const char *word)
{
    const size_t mapped = mapped_bytes();
    if (strcmp(word, "--three-gibibytes") == 0) return malloc(3 * gibibyte) == NULL;
    if (strcmp(word, "--half-a-mebibyte") == 0) return malloc(mebibyte / 2) == NULL;
    require(mapped < 64 * mebibyte, "%zu bytes are mapped at the start", mapped);
    return 0;
}

/* ---- locked memory --------------------------------------------------------------------------- */

/* The user who runs the test may have no right to more than the usual 8 MiB. */
CHECK("memory can be locked")
{
    struct rlimit limit;
    free(malloc(100));
    require(getrlimit(RLIMIT_MEMLOCK, &limit) == 0, "getrlimit: %s", strerror(errno));
    if (limit.rlim_max > 4 * gibibyte) limit.rlim_max = 4 * gibibyte;
    limit.rlim_cur = limit.rlim_max;
    require(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit: %s", strerror(errno));
    require(geteuid() != 0 || setuid(65534) == 0, "setuid: %s", strerror(errno));
    const size_t mapped = mapped_bytes();
    require(mapped < 16 * mebibyte, "%zu bytes are mapped at the start", mapped);
    const int failed = mapped > limit.rlim_cur ? 0 : mlockall(MCL_CURRENT | MCL_FUTURE);
    require(failed == 0, "mlockall: %s, of %zu bytes", strerror(errno), mapped);
    char *block = malloc(64 * 1024);
    require(block != NULL, "no memory");
    memset(block, 1, 64 * 1024);
    free(block);
}

CHECK("the heap outgrows a tebibyte")
{
    char *blocks[20];
    for (size_t i = 0; i < COUNT(blocks); i++) {
        blocks[i] = malloc(gibibyte * 64);
        require(blocks[i] != NULL, "no block %zu", i);
        blocks[i][0] = blocks[i][64 * gibibyte - 1] = (char)i;
    }
    for (size_t i = 0; i < COUNT(blocks); i++) {
        require(blocks[i][0] == (char)i && blocks[i][64 * gibibyte - 1] == (char)i, "block %zu", i);
        free(blocks[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strncmp(argv[1], "--", 2) == 0) return started(argv[1]);
    return run_checks(argc, argv);
}
