/*
 * What must be preloaded beside an allocator: see preload.h.
 */
#include "preload.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "allocator_name.h"
#include "arguments.h"
#include "library.h"

#define VARIABLE "LD_PRELOAD="
#define SEPARATORS ": " /* ld.so(8) */
#define BESIDE "libhz-deepbind.so"

/* Where it stands, seen from this program's folder: when installed, and in a build. */
static const char *const folders[] = {"../" HZ_LIBRARY_FOLDER, ".."};

/* The library's file; false when there is none that LD_PRELOAD could name. */
static bool find_library(char file[PATH_MAX])
{
    char program[PATH_MAX];
    char path[2 * PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return false;
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s/" BESIDE, program, folders[i]);
        if (realpath(path, file) != NULL) return strpbrk(file, SEPARATORS) == NULL;
    }
    return false;
}

/* Whether one entry of LD_PRELOAD is an allocator other than hz. */
static bool is_allocator(const char *entry)
{
    const char *name = hz_allocator_name(entry);
    return name != NULL ? strcmp(name, "hz") != 0 : hz_library_defines(entry, "malloc");
}

/* Whether the entries hold an allocator that lacks the library. */
static bool is_incomplete(const char *entries)
{
    char *rest = strdup(entries);
    char *state = NULL;
    bool found = false;
    bool complete = false;
    if (rest == NULL) hz_fail("no memory for " VARIABLE);
    for (char *entry = strtok_r(rest, SEPARATORS, &state); entry != NULL;
         entry = strtok_r(NULL, SEPARATORS, &state)) {
        complete = complete || strcmp(hz_base_name(entry), BESIDE) == 0;
        found = found || is_allocator(entry);
    }
    free(rest);
    return found && !complete;
}

void hz_preload_complete(char **environment)
{
    char file[PATH_MAX];
    for (char **item = environment; *item != NULL; item++) {
        const char *entries = *item + strlen(VARIABLE);
        if (strncmp(*item, VARIABLE, strlen(VARIABLE)) != 0 || !is_incomplete(entries)) continue;
        if (!find_library(file)) return;
        const size_t bytes = strlen(*item) + strlen(file) + 2;
        char *longer = malloc(bytes);
        if (longer == NULL) hz_fail("no memory for " VARIABLE);
        (void)snprintf(longer, bytes, "%s:%s", *item, file);
        *item = longer;
    }
}
