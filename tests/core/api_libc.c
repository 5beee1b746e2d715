/* Blocks that the C library allocates and the program frees, and memory before main and after it.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

/* ---- before main ---------------------------------------------------------------------------- */

static char *early;

__attribute__((constructor(101))) static void allocate_early(void)
{
    early = malloc(5000);
    if (early != NULL) memset(early, 0x29, 5000);
}

/* An IFUNC resolver runs while the loader still relocates: malloc may not be called there, but must
 * exist soon after. */
static int answer_plain(void)
{
    return 42;
}
static int (*resolve_answer(void))(void)
{
    return answer_plain;
}
#ifdef __GLIBC__
int answer(void) __attribute__((ifunc("resolve_answer")));
#else /* musl has none */
static int answer(void)
{
    return resolve_answer()();
}
#endif

CHECK("a constructor that runs first can allocate")
{
    require(early != NULL && early[0] == 0x29 && early[4999] == 0x29,
            "the block of the constructor is lost");
    require(answer() == 42, "the indirect function is lost");
    early = realloc(early, 50000);
    require(early[4999] == 0x29, "realloc lost the constructor's block");
    free(early);
}

/* ---- after main ----------------------------------------------------------------------------- */

static char *late;
static int exiting;

static void free_late(void)
{
    free(late);
    free(malloc(100));
    late = calloc(1, 70000);
}

__attribute__((destructor(101))) static void allocate_in_the_last_destructor(void)
{
    if (exiting) {
        free(late);
        char *block = malloc(300);
        memset(block, 1, 300);
        free(block);
        (void)!write(STDERR_FILENO, "last", 4);
    }
}

static void exit_with_late_frees(void *unused)
{
    (void)unused;
    exiting = 1;
    late = malloc(1000);
    (void)atexit(free_late);
    exit(0);
}

CHECK("exit handlers and the last destructor can allocate and free")
{
    ending result;
    run_apart(exit_with_late_frees, NULL, 10, &result);
    require(result.signal == 0 && result.status == 0, "signal %d, status %d", result.signal,
            result.status);
    require(strcmp(result.said, "last") == 0, "the last destructor said '%s'", result.said);
}

/* ---- the library's blocks ------------------------------------------------------------------- */

CHECK("strdup, strndup and wcsdup give blocks that free takes")
{
    char *copies[] = {strdup("one"), strndup("two and more", 3), (char *)wcsdup(L"three")};
    require(strcmp(copies[0], "one") == 0 && strcmp(copies[1], "two") == 0, "wrong copies");
    for (size_t i = 0; i < COUNT(copies); i++) free(copies[i]);
}

CHECK("asprintf gives a block that free takes")
{
    char *text = NULL;
    require(asprintf(&text, "%d %s %5000d", 7, "seven", 8) > 5000, "asprintf failed");
    require(strncmp(text, "7 seven", 7) == 0, "it wrote %.20s", text);
    free(text);
}
