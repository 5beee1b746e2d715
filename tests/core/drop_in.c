/*
 * A C program that is linked to libhz.a runs on hz without a preload: its own blocks, and those
 * that the C library makes for it.
 */
#include <hz/hz.h>

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static size_t live(void)
{
    return hz_usage_now().live_bytes;
}

static void require_ours(void *block, size_t before, const char *what)
{
    require(block != NULL, "%s gave NULL", what);
    require(live() == before + malloc_usable_size(block), "%s is not hz's", what);
    free(block);
    require(live() == before, "free after %s is not hz's", what);
}

CHECK("malloc, free and their kin are hz's")
{
    free(malloc(1));
    void *block = NULL;
    const size_t before = live();
    require_ours(malloc(100), before, "malloc");
    require_ours(calloc(10, 10), before, "calloc");
    require_ours(realloc(malloc(10), 5000), before, "realloc");
    require_ours(reallocarray(NULL, 10, 10), before, "reallocarray");
    require_ours(memalign(64, 100), before, "memalign");
    require_ours(aligned_alloc(4096, 8192), before, "aligned_alloc");
    require(posix_memalign(&block, 256, 300) == 0, "posix_memalign failed");
    require_ours(block, before, "posix_memalign");
    require_ours(valloc(100), before, "valloc");
    require_ours(pvalloc(100), before, "pvalloc");
    require_ours(malloc(1 << 20), before, "malloc of a large block");
}

#ifdef __GLIBC__
CHECK("what glibc adds to malloc is hz's")
{
    free(malloc(1));
    char *text = NULL;
    size_t length = 0;
    void *block = malloc(3000);
    free(malloc(3000));
    require(mallinfo2().uordblks == live(), "mallinfo2 is not hz's");
    require(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1 && mallopt(-1000, 1) == 0,
            "mallopt is not hz's");
    FILE *stream = open_memstream(&text, &length);
    require(malloc_info(0, stream) == 0 && fclose(stream) == 0, "malloc_info failed");
    require(strstr(text, "to=\"3136\"") != NULL, "malloc_info is not hz's: %s", text);
    free(text);
    free(block);
    malloc_trim(0);
    malloc_stats();
}
#endif

CHECK("the C library's own blocks are hz's")
{
    free(malloc(1));
    char *text = NULL;
    const size_t before = live();
    require_ours(strdup("some text that is copied"), before, "strdup");
    require(asprintf(&text, "%0900d", 1) == 900, "asprintf failed");
    require_ours(text, before, "asprintf");
}

static void *churn(void *unused)
{
    for (size_t i = 0; i < 50000; i++) {
        char *block = malloc(i % 5000 + 1);
        block[0] = 1;
        free(block);
    }
    return unused;
}

CHECK("threads and forks work")
{
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT(threads); i++) threads[i] = thread_start(churn, NULL);
    for (int i = 0; i < 20; i++) {
        int status = -1;
        const pid_t child = fork();
        if (child == 0) {
            churn(NULL);
            _exit(7);
        }
        require(waitpid(child, &status, 0) == child, "waitpid");
        require(WIFEXITED(status) && WEXITSTATUS(status) == 7, "child: status %x",
                (unsigned)status);
    }
    for (size_t i = 0; i < COUNT(threads); i++) (void)thread_end(threads[i]);
}
