/*
 * Libraries of allocators: their short names, what they define, and what must be preloaded beside
 * them.
 */
#ifndef HZ_BENCH_LIBRARIES_H
#define HZ_BENCH_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>

/* A name as `glibc` or `hz` for a library's path, or NULL when it is no allocator known here. */
const char *hz_allocator_name(const char *path);

/* What follows the last slash of a path. */
const char *hz_base_name(const char *path);

/* Whether the ELF file `path` defines `symbol` for others; false too when it cannot be read. */
bool hz_library_defines(const char *path, const char *symbol);

/*
 * Adds libhz-deepbind.so to LD_PRELOAD where that names an allocator: without it
 * no program runs that loads libraries with RTLD_DEEPBIND. hz has it inside. Where the library is
 * not beside this program, nothing is added.
 */
void hz_preload_complete(void);

#endif
