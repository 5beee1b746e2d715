/* A library with a RUNPATH of its own: what it loads by a bare name, the loader finds by that. */
#include "deepbind_module.h"

#include <dlfcn.h>

malloc_function *caller_early_malloc;

/* The constructors of libraries that a program is linked with run before those of what was
 * preloaded. */
__attribute__((constructor)) static void load_early(void)
{
    malloc_function *(*which)(void) = NULL;
    void *handle = dlopen(HIDDEN_NAME, RTLD_NOW | RTLD_DEEPBIND);
    if (handle == NULL) return;
    *(void **)&which = dlsym(handle, "module_malloc");
    caller_early_malloc = which != NULL ? which() : NULL;
    (void)dlclose(handle);
}

bool caller_finds(int mode)
{
    void *handle = dlopen(HIDDEN_NAME, mode);
    return handle != NULL && dlclose(handle) == 0;
}

bool caller_finds_in_space(int mode)
{
    void *handle = dlmopen(LM_ID_BASE, HIDDEN_NAME, mode);
    return handle != NULL && dlclose(handle) == 0;
}
