/*
 * Short names of allocators: see allocator_name.h.
 */
#include "allocator_name.h"

#include <string.h>

/* A library is known by the start of its file's name; what follows is its flavour or version. */
static const struct {
    const char *start; /* of the file's name */
    const char *name;  /* of the allocator */
} known[] = {
    {"libc.so", "glibc"},         {"libc-", "glibc"},          {"libhz.", "hz"},
    {"libjemalloc.", "jemalloc"}, {"libmimalloc", "mimalloc"}, {"libtcmalloc", "tcmalloc"},
    {"libtbbmalloc", "tbb"},      {"libsnmalloc", "snmalloc"}, {"librpmalloc", "rpmalloc"},
};

const char *hz_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

const char *hz_allocator_name(const char *path)
{
    const char *file = hz_base_name(path);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strncmp(file, known[i].start, strlen(known[i].start)) == 0) return known[i].name;
    return NULL;
}
