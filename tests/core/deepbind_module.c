/* What deepbind.h tells: as the caller with HIDDEN_NAME, else as the module. */
#include "deepbind.h"

#include <dlfcn.h>
#include <stdlib.h>

#ifdef HIDDEN_NAME
malloc_function *caller_early_malloc;

/* The constructors of libraries that a program is linked with run before those of what was
 * preloaded. */
__attribute__((constructor)) static void load_early(void)
{
    module (*of)(void) = NULL;
    void *handle = dlopen(HIDDEN_NAME, RTLD_NOW | RTLD_DEEPBIND);
    if (handle == NULL) return;
    *(void **)&of = dlsym(handle, "module_of");
    caller_early_malloc = of != NULL ? of().which : NULL;
    (void)dlclose(handle);
}

bool caller_finds(int mode, bool in_space)
{
    void *handle = in_space ? dlmopen(LM_ID_BASE, HIDDEN_NAME, mode) : dlopen(HIDDEN_NAME, mode);
    return handle != NULL && dlclose(handle) == 0;
}
#else
static void *take(size_t size)
{
    return malloc(size);
}

static void give(void *block)
{
    free(block);
}

module module_of(void)
{
    return (module){take, give, malloc};
}
#endif
