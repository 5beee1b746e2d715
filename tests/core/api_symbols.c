/* Every symbol of the malloc family is the allocator's own: a missing one would mix two allocators
 * in one program. */
#include "check.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *const c_symbols[] = {
    "malloc",
    "calloc",
    "realloc",
    "free",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "reallocarray",
    "malloc_usable_size",
    "free_sized",
    "free_aligned_sized",
    "mallopt",
    "mallinfo",
    "mallinfo2",
    "malloc_trim",
    "malloc_info",
    "malloc_stats",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_free",
    "__libc_memalign",
    "cfree",
};

static const char *const cxx_symbols[] = {
    "_Znwm",                               /* new(size) */
    "_Znam",                               /* new[](size) */
    "_ZnwmRKSt9nothrow_t",                 /* new(size, nothrow) */
    "_ZnamRKSt9nothrow_t",                 /* new[](size, nothrow) */
    "_ZnwmSt11align_val_t",                /* new(size, align) */
    "_ZnamSt11align_val_t",                /* new[](size, align) */
    "_ZnwmSt11align_val_tRKSt9nothrow_t",  /* new(size, align, nothrow) */
    "_ZnamSt11align_val_tRKSt9nothrow_t",  /* new[](size, align, nothrow) */
    "_ZdlPv",                              /* delete(p) */
    "_ZdaPv",                              /* delete[](p) */
    "_ZdlPvm",                             /* delete(p, size) */
    "_ZdaPvm",                             /* delete[](p, size) */
    "_ZdlPvRKSt9nothrow_t",                /* delete(p, nothrow) */
    "_ZdaPvRKSt9nothrow_t",                /* delete[](p, nothrow) */
    "_ZdlPvSt11align_val_t",               /* delete(p, align) */
    "_ZdaPvSt11align_val_t",               /* delete[](p, align) */
    "_ZdlPvmSt11align_val_t",              /* delete(p, size, align) */
    "_ZdaPvmSt11align_val_t",              /* delete[](p, size, align) */
    "_ZdlPvSt11align_val_tRKSt9nothrow_t", /* delete(p, align, nothrow) */
    "_ZdaPvSt11align_val_tRKSt9nothrow_t", /* delete[](p, align, nothrow) */
};

static void require_home(const char *symbol, const char *home)
{
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, symbol);
    require(address != NULL, "there is no %s", symbol);
    require(dladdr(address, &info) != 0 && info.dli_fname != NULL, "%s belongs to no library",
            symbol);
    require(strcmp(info.dli_fname, home) == 0, "%s comes from %s, malloc from %s", symbol,
            info.dli_fname, home);
}

static void require_all_home(const char *const *symbols, size_t count)
{
    Dl_info info;
    require(dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info) != 0, "malloc belongs to no library");
    for (size_t i = 0; i < count; i++) require_home(symbols[i], info.dli_fname);
}

CHECK("all C symbols of the malloc family come from the library of malloc")
{
    require_all_home(c_symbols, COUNT(c_symbols));
}
CHECK("all 20 C++ operators come from the library of malloc")
{
    require_all_home(cxx_symbols, COUNT(cxx_symbols));
}

CHECK("hz exports its own interface")
{
    static const char *const own[] = {
        "hz_malloc",     "hz_calloc",  "hz_realloc",     "hz_free",
        "hz_stats_json", "hz_version", "hz_param_value",
    };
    require_all_home(own, COUNT(own));
}

CHECK("free_sized and free_aligned_sized take blocks back")
{
    void *(*take)(size_t) = NULL;
    void *(*take_aligned)(size_t, size_t) = NULL;
    void (*give)(void *, size_t) = NULL;
    void (*give_aligned)(void *, size_t, size_t) = NULL;
    *(void **)&take = dlsym(RTLD_DEFAULT, "malloc");
    *(void **)&take_aligned = dlsym(RTLD_DEFAULT, "aligned_alloc");
    *(void **)&give = dlsym(RTLD_DEFAULT, "free_sized");
    *(void **)&give_aligned = dlsym(RTLD_DEFAULT, "free_aligned_sized");
    require(give != NULL && give_aligned != NULL, "the C23 names are missing");
    give(NULL, 0);
    give_aligned(NULL, 64, 0);
    for (size_t size = 0; size < 300000; size = size * 2 + 1) {
        for (int i = 0; i < 300; i++) {
            give(take(size), size);
            give_aligned(take_aligned(256, size), 256, size);
        }
    }
    require(resident_bytes() < (64u << 20), "%zu bytes are resident: they leak", resident_bytes());
}
