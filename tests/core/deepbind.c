/*
 * Libraries that are loaded with RTLD_DEEPBIND use the program's malloc; with HZ_KEEP_DEEPBIND=1
 * the flag reaches the C library, and they use its malloc. Runs under any preloaded allocator: hz,
 * or another with libhz-deepbind.so beside it.
 */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "deepbind_module.h"

enum { BLOCKS = 1000, THREADS = 8 };

typedef struct module {
    void *(*take)(size_t size);
    void (*give)(void *block);
    malloc_function *(*which)(void); /* the malloc that take calls */
} module;

static module find(void *handle)
{
    module found;
    require(handle != NULL, "nothing was loaded: %s", dlerror());
    *(void **)&found.take = dlsym(handle, "module_take");
    *(void **)&found.give = dlsym(handle, "module_give");
    *(void **)&found.which = dlsym(handle, "module_malloc");
    require(found.take != NULL && found.give != NULL && found.which != NULL, "%s", dlerror());
    return found;
}

static module load(int mode)
{
    return find(dlopen(MODULE_FILE, mode));
}

static const char *home_of(const module *loaded)
{
    Dl_info info;
    const uintptr_t function = (uintptr_t)loaded->which();
    require(dladdr((void *)function, &info) != 0, "the module's malloc is in no library");
    return info.dli_fname;
}

static void require_the_programs_malloc(const module *loaded)
{
    const uintptr_t function = (uintptr_t)loaded->which();
    require((void *)function == dlsym(RTLD_DEFAULT, "malloc"), "the module's malloc is that of %s",
            home_of(loaded));
}

CHECK("the program frees what the module allocates")
{
    const module loaded = load(RTLD_NOW | RTLD_DEEPBIND);
    for (size_t i = 0; i < BLOCKS; i++) free(memset(loaded.take(i * i + 1), 1, i * i + 1));
    require_the_programs_malloc(&loaded);
}

CHECK("the module frees what the program allocates")
{
    const module loaded = load(RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND);
    for (size_t i = 0; i < BLOCKS; i++) loaded.give(memset(malloc(i * i + 1), 1, i * i + 1));
    require_the_programs_malloc(&loaded);
}

CHECK("dlmopen into the program's own namespace is no other")
{
    const module loaded = find(dlmopen(LM_ID_BASE, MODULE_FILE, RTLD_NOW | RTLD_DEEPBIND));
    loaded.give(malloc(100));
    free(loaded.take(100));
    require_the_programs_malloc(&loaded);
}

CHECK("a namespace of its own keeps its own malloc")
{
    const module loaded = find(dlmopen(LM_ID_NEWLM, MODULE_FILE, RTLD_NOW | RTLD_DEEPBIND));
    const uintptr_t function = (uintptr_t)loaded.which();
    for (size_t i = 0; i < BLOCKS; i++) loaded.give(loaded.take(i));
    require((void *)function != dlsym(RTLD_DEFAULT, "malloc"), "it uses the program's");
}

CHECK("a constructor that runs before ours may load")
{
    const uintptr_t function = (uintptr_t)caller_early_malloc;
    require(function != 0, "the library that loads early found nothing");
    require((void *)function == dlsym(RTLD_DEFAULT, "malloc"), "it got another malloc");
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

static void *load_and_use(void *unused)
{
    const module loaded = load(RTLD_NOW | RTLD_DEEPBIND);
    (void)unused;
    free(loaded.take(100));
    return NULL;
}

CHECK("threads may load at once")
{
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) threads[i] = thread_start(load_and_use, NULL);
    for (size_t i = 0; i < THREADS; i++) (void)thread_end(threads[i]);
}

/* ---- where the flag is kept ------------------------------------------------------------------ */

static bool is_kept(void)
{
    return getenv("HZ_KEEP_DEEPBIND") != NULL;
}

static void require_the_c_librarys(void)
{
    const module loaded = load(RTLD_NOW | RTLD_DEEPBIND);
    require(strstr(home_of(&loaded), "/libc.so") != NULL, "its malloc is that of %s",
            home_of(&loaded));
    loaded.give(loaded.take(100));
}

CHECK("kept: the flag reaches the C library, also when the switch is taken back")
{
    if (!is_kept()) return;
    require_the_c_librarys();
    require(unsetenv("HZ_KEEP_DEEPBIND") == 0, "unsetenv");
    require_the_c_librarys();
}

CHECK("kept: without the flag the switch changes nothing")
{
    const module loaded = load(RTLD_NOW);
    free(loaded.take(100));
    require_the_programs_malloc(&loaded);
}

CHECK("kept: the caller stays the caller, whose RUNPATH is searched")
{
    require(caller_finds(RTLD_NOW), "without the flag: %s", dlerror());
    require(caller_finds(RTLD_NOW | RTLD_DEEPBIND), "with the flag: %s", dlerror());
    require(caller_finds_in_space(RTLD_NOW), "by dlmopen: %s", dlerror());
    require(caller_finds_in_space(RTLD_NOW | RTLD_DEEPBIND), "by both: %s", dlerror());
    require(dlopen(HIDDEN_NAME, RTLD_NOW) == NULL, "the program, which has no such RUNPATH, too");
}

int main(int argc, char **argv)
{
    static char only[] = "kept: ";
    return is_kept() ? run_checks(2, (char *[]){argv[0], only}) : run_checks(argc, argv);
}
