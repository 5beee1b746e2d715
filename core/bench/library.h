/*
 * Whether a library file offers a function to the programs that load it.
 */
#ifndef HZ_BENCH_LIBRARY_H
#define HZ_BENCH_LIBRARY_H

#include <stdbool.h>

/* Whether the ELF file `path` defines `symbol` for others; false too when it cannot be read. */
bool hz_library_defines(const char *path, const char *symbol);

#endif
