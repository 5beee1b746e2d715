/*
 * The libraries that deepbind.c loads, and the one that loads for it.
 */
#ifndef TEST_DEEPBIND_MODULE_H
#define TEST_DEEPBIND_MODULE_H

#include <stdbool.h>
#include <stddef.h>

typedef void *malloc_function(size_t size);

/* deepbind_module.c */
void *module_take(size_t size);
void module_give(void *block);
malloc_function *module_malloc(void); /* the malloc that it calls */

/* deepbind_caller.c: a library with a RUNPATH of its own, by which alone HIDDEN_NAME is found. Each
 * unloads what it loads: the loader finds by its name what is loaded already. */
bool caller_finds(int mode);                 /* whether dlopen by it finds the library */
bool caller_finds_in_space(int mode);        /* and dlmopen, into the program's own namespace */
extern malloc_function *caller_early_malloc; /* what the library called that its constructor loaded
                                                with RTLD_DEEPBIND; NULL: none was found */

#endif
