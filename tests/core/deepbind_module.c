/* A library that deepbind.c loads: what it calls is malloc and free as its own scope finds them. */
#include "deepbind_module.h"

#include <stdlib.h>

void *module_take(size_t size)
{
    return malloc(size);
}

void module_give(void *block)
{
    free(block);
}

malloc_function *module_malloc(void)
{
    return malloc;
}
