/* Blocks that the C library allocates and the program frees, and memory before main and after it.
 */
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <locale.h>
#include <netdb.h>
#include <pthread.h>
#include <regex.h>
#include <search.h>
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

CHECK("getline grows a block that free takes")
{
    char *line = NULL;
    size_t room = 0;
    size_t lines = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (getline(&line, &room, file) > 0) lines++;
    (void)fclose(file);
    require(lines > 3 && room > 0, "%zu lines", lines);
    free(line);
}

CHECK("getcwd and realpath give blocks that free takes")
{
    char *here = getcwd(NULL, 0);
    char *real = realpath("/proc/self/..", NULL);
    char *joined = get_current_dir_name();
    require(here != NULL && real != NULL && joined != NULL, "errno %d", errno);
    require(strcmp(real, "/proc") == 0, "realpath gave %s", real);
    free(here);
    free(real);
    free(joined);
}

CHECK("open_memstream grows a block that free takes")
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    for (int i = 0; i < 10000; i++) (void)fprintf(stream, "%d,", i);
    (void)fclose(stream);
    require(length == 48890, "length %zu", length);
    free(text);
}

CHECK("regular expressions compile and go")
{
    regex_t expression;
    require(regcomp(&expression, "^(a|b)*c[0-9]+(x{2,5}|y)$", REG_EXTENDED) == 0, "regcomp failed");
    require(regexec(&expression, "ababc42xxx", 0, NULL, 0) == 0, "no match");
    regfree(&expression);
}

CHECK("getaddrinfo gives what freeaddrinfo takes")
{
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    require(getaddrinfo("127.0.0.1", "80", &hints, &found) == 0 && found != NULL,
            "getaddrinfo failed");
    freeaddrinfo(found);
}

CHECK("scandir and glob give blocks that free takes")
{
    struct dirent **names = NULL;
    const int count = scandir("/proc/self", &names, NULL, alphasort);
    require(count > 10, "%d names", count);
    for (int i = 0; i < count; i++) free(names[i]);
    free(names);
    glob_t found;
    require(glob("/proc/self/m*", 0, NULL, &found) == 0, "glob failed");
    globfree(&found);
}

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}
static void forget(void *node)
{
    (void)node;
}

CHECK("tsearch, setenv and newlocale work")
{
    void *root = NULL;
    static char keys[200][8];
    for (int i = 0; i < 200; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "%d", i);
        require(tsearch(keys[i], &root, compare) != NULL, "tsearch failed");
    }
    tdestroy(root, forget);
    require(setenv("A_VARIABLE_OF_THIS_TEST", "value", 1) == 0 &&
                unsetenv("A_VARIABLE_OF_THIS_TEST") == 0,
            "setenv");
    locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    require(locale != (locale_t)0, "newlocale failed");
    freelocale(locale);
}

static void *nothing(void *unused)
{
    return unused;
}

CHECK("threads and thread-specific blocks work")
{
    pthread_key_t keys[100];
    for (size_t i = 0; i < COUNT(keys); i++) {
        require(pthread_key_create(&keys[i], free) == 0, "pthread_key_create failed");
        require(pthread_setspecific(keys[i], malloc(64)) == 0, "pthread_setspecific failed");
    }
    for (int i = 0; i < 50; i++) {
        (void)thread_end(thread_start(nothing, NULL));
    }
}
