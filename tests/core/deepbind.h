/*
 * The library that deepbind.c loads, and the one that loads for it: deepbind_module.c.
 */
#ifndef TEST_DEEPBIND_H
#define TEST_DEEPBIND_H

#include <stdbool.h>
#include <stddef.h>

typedef void *malloc_function(size_t size);

typedef struct module {
    void *(*take)(size_t size);
    void (*give)(void *block);
    malloc_function *which; /* the malloc that take calls */
} module;

/* Of the loaded library: malloc and free as its own scope finds them. */
module module_of(void);

/* A library with a RUNPATH of its own, by which alone HIDDEN_NAME is found, opens it by dlopen, or
 * by dlmopen into the program's own namespace, and unloads it: the loader finds by its name what is
 * loaded already. */
bool caller_finds(int mode, bool in_space);
extern malloc_function *caller_early_malloc; /* what the library called that its constructor loaded
                                                with RTLD_DEEPBIND; NULL: none was found */

#endif
