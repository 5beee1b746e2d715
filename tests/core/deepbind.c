/*
 * Libraries that are loaded with RTLD_DEEPBIND use the program's malloc; with HZ_KEEP_DEEPBIND=1
 * the flag reaches the C library, and they use its malloc. Runs under any preloaded allocator: hz,
 * or another with libhz-deepbind.so beside it.
 */
#include "check.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "deepbind.h"

static module find(void *handle)
{
    module (*of)(void) = NULL;
    require(handle != NULL, "nothing was loaded: %s", dlerror());
    *(void **)&of = dlsym(handle, "module_of");
    require(of != NULL, "%s", dlerror());
    return of();
}

static module load(int mode)
{
    return find(dlopen(MODULE_FILE, mode));
}

static const char *home_of(malloc_function *which)
{
    Dl_info info;
    require(dladdr((void *)(uintptr_t)which, &info) != 0, "the module's malloc is in no library");
    return info.dli_fname;
}

static bool is_the_programs(malloc_function *which)
{
    return (void *)(uintptr_t)which == dlsym(RTLD_DEFAULT, "malloc");
}

/* The program frees what the module allocates, and the other way round. */
static void require_shared(module loaded)
{
    require(is_the_programs(loaded.which), "the module's malloc is that of %s",
            home_of(loaded.which));
    for (size_t i = 0; i < 1000; i++) free(memset(loaded.take(i * i + 1), 1, i * i + 1));
    for (size_t i = 0; i < 1000; i++) loaded.give(memset(malloc(i * i + 1), 1, i * i + 1));
}

static void *load_and_share(void *unused)
{
    require_shared(load(RTLD_NOW | RTLD_DEEPBIND));
    return unused;
}

CHECK("the module shares the program's malloc, also by dlmopen into the program's namespace")
{
    require_shared(load(RTLD_NOW | RTLD_DEEPBIND));
    require_shared(load(RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND));
    require_shared(find(dlmopen(LM_ID_BASE, MODULE_FILE, RTLD_NOW | RTLD_DEEPBIND)));
}

CHECK("threads may load at once")
{
    crowd all;
    crowd_start(&all, 8, load_and_share);
    crowd_end(&all);
}

CHECK("a namespace of its own keeps its own malloc")
{
    const module loaded = find(dlmopen(LM_ID_NEWLM, MODULE_FILE, RTLD_NOW | RTLD_DEEPBIND));
    for (size_t i = 0; i < 1000; i++) loaded.give(loaded.take(i));
    require(!is_the_programs(loaded.which), "it uses the program's");
}

CHECK("a constructor that runs before ours may load")
{
    require(caller_early_malloc != NULL, "the library that loads early found nothing");
    require(is_the_programs(caller_early_malloc), "it got another malloc");
}

CHECK("what cannot be loaded is named")
{
    require(dlopen("libnosuch.so.9", RTLD_NOW | RTLD_DEEPBIND) == NULL, "it was loaded");
    const char *why = dlerror();
    require(why != NULL && strstr(why, "libnosuch.so.9") != NULL, "%s", why);
    require(dlopen(MODULE_FILE, RTLD_DEEPBIND) == NULL, "a mode without RTLD_NOW or RTLD_LAZY");
    require(dlopen(NULL, RTLD_NOW | RTLD_DEEPBIND) != NULL, "the program itself: %s", dlerror());
    require(dlopen(MODULE_FILE, RTLD_NOW | RTLD_NOLOAD | RTLD_DEEPBIND) == NULL, "not loaded yet");
}

/* ---- where the flag is kept ------------------------------------------------------------------ */

static bool is_kept(void)
{
    return getenv("HZ_KEEP_DEEPBIND") != NULL;
}

CHECK("kept: the flag reaches the C library, also when the switch is taken back")
{
    for (int i = 0; is_kept() || i == 1; i++) {
        const module loaded = load(RTLD_NOW | RTLD_DEEPBIND);
        require(strstr(home_of(loaded.which), "/libc.so") != NULL, "its malloc is that of %s",
                home_of(loaded.which));
        loaded.give(loaded.take(100));
        require(unsetenv("HZ_KEEP_DEEPBIND") == 0, "unsetenv");
    }
}

CHECK("kept: without the flag the switch changes nothing")
{
    require_shared(load(RTLD_NOW));
}

CHECK("kept: the caller stays the caller, whose RUNPATH is searched")
{
    for (int i = 0; i < 4; i++)
        require(caller_finds(RTLD_NOW | (i % 2 == 0 ? RTLD_DEEPBIND : 0), i / 2 == 1), "way %d: %s",
                i, dlerror());
    require(dlopen(HIDDEN_NAME, RTLD_NOW) == NULL, "the program, which has no such RUNPATH, too");
}

int main(int argc, char **argv)
{
    static char only[] = "kept: ";
    return is_kept() ? run_checks(2, (char *[]){argv[0], only}) : run_checks(argc, argv);
}
