/*
 * Which allocator this process runs on: see allocator.h.
 */
#include "allocator.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A library is known by the start of its file's name; what follows it is its flavour or version. */
static const struct {
    const char *start;
    const char *name;
} known[] = {
    {"libc.so", "glibc"},        {"libc-", "glibc"},          {"libhz.", "hz"},
    {"libjemalloc", "jemalloc"}, {"libmimalloc", "mimalloc"}, {"libtcmalloc", "tcmalloc"},
};

void hz_allocator_name(const char *path, char *name, size_t size)
{
    const char *slash = strrchr(path, '/');
    const char *file = slash != NULL ? slash + 1 : path;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strncmp(file, known[i].start, strlen(known[i].start)) == 0) file = known[i].name;
    (void)snprintf(name, size, "%s", file);
}

const char *hz_allocator_path(void)
{
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, "malloc");
    return address != NULL && dladdr(address, &info) != 0 && info.dli_fname != NULL ? info.dli_fname
                                                                                    : "";
}

typedef size_t stats_function(char *buffer, size_t size);

const char *hz_allocator_stats(void)
{
    union { /* the way from an object pointer to a function pointer that ISO C allows */
        void *object;
        stats_function *function;
    } stats = {.object = dlsym(RTLD_DEFAULT, "hz_stats_json")};
    if (stats.object == NULL) return NULL;
    const size_t room =
        stats.function(NULL, 0) + 4096; /* counters may grow a digit until they are read */
    char *text = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (text == MAP_FAILED || stats.function(text, room) >= room) return NULL;
    return text;
}
