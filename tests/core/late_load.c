/*
 * The library needs little static TLS, so that it can be loaded late: by dlopen, into a program
 * that has already loaded many libraries with thread-local variables. Run without a preload:
 *
 *   late_load LIBHZ MODULE      the two shared libraries to load
 */
#include "check.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MODULES = 30, TLS_BYTES_MAX = 64 };

static const char *library, *module;
static size_t tls_bytes;

static void *load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    require(handle != NULL, "dlopen: %s", dlerror());
    return handle;
}

static int note_tls(struct dl_phdr_info *info, size_t size, void *name)
{
    (void)size;
    for (size_t i = 0; strstr(info->dlpi_name, name) != NULL && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS) tls_bytes = info->dlpi_phdr[i].p_memsz;
    return 0;
}

CHECK("the library's static TLS is at most 64 bytes")
{
    char real[4096];
    (void)load(library);
    require(realpath(library, real) != NULL, "realpath: %s", strerror(errno));
    (void)dl_iterate_phdr(note_tls, strrchr(real, '/'));
    require(tls_bytes > 0 && tls_bytes <= TLS_BYTES_MAX, "it is %zu bytes", tls_bytes);
}

/* Loads a copy of the module, as a file of its own: the same file twice would be one library. The
 * file stays open: a new descriptor makes a new path. */
static void load_copy_of_module(void)
{
    char path[64];
    struct stat status;
    int (*number)(void) = NULL;
    const int from = open(module, O_RDONLY | O_CLOEXEC), to = memfd_create("module", 0);
    require(fstat(from, &status) == 0 && sendfile(to, from, NULL, (size_t)status.st_size) > 0,
            "cannot copy %s: %s", module, strerror(errno));
    (void)close(from);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", to);
    *(void **)&number = dlsym(load(path), "module_number");
    require(number != NULL && number() == 7, "the module is broken");
}

/* ---- the library in use ---------------------------------------------------------------------- */

static void *(*take)(size_t size);
static void (*give)(void *block);

static void *load_library(void)
{
    void *handle = load(library);
    *(void **)&take = dlsym(handle, "hz_malloc");
    *(void **)&give = dlsym(handle, "hz_free");
    require(take != NULL && give != NULL, "the library has no hz_malloc and hz_free");
    return handle;
}

static void *use(void *unused)
{
    char *blocks[500];
    for (size_t i = 0; i < COUNT(blocks); i++)
        blocks[i] = memset(take(i * 20 + 1), (int)i, i * 20 + 1);
    for (size_t i = 0; i < COUNT(blocks); i++) {
        require(blocks[i][i * 20] == (char)i, "block %zu changed", i);
        give(blocks[i]);
    }
    return unused;
}

static void use_here_and_in_threads(void)
{
    (void)load_library();
    (void)use(NULL);
    for (int i = 0; i < 10; i++) (void)thread_end(thread_start(use, NULL));
}

CHECK("the library can be loaded after thirty libraries with TLS")
{
    for (int i = 0; i < MODULES; i++) load_copy_of_module();
    use_here_and_in_threads();
}

static pthread_barrier_t barrier;

/* Whatever the library set up for this thread's end runs after it was closed. */
static void *use_and_outlive(void *unused)
{
    (void)use(NULL);
    (void)pthread_barrier_wait(&barrier); /* used */
    (void)pthread_barrier_wait(&barrier); /* closed */
    return unused;
}

CHECK("closing the library does not harm threads that used it")
{
    void *handle = load_library();
    (void)pthread_barrier_init(&barrier, NULL, 2);
    const pthread_t thread = thread_start(use_and_outlive, NULL);
    (void)pthread_barrier_wait(&barrier);
    require(dlclose(handle) == 0, "dlclose: %s", dlerror());
    (void)pthread_barrier_wait(&barrier);
    (void)thread_end(thread);
    use_here_and_in_threads();
}

static void *use_beside_a_key(void *key)
{
    int value = 0;
    require(pthread_setspecific(*(pthread_key_t *)key, &value) == 0, "pthread_setspecific");
    (void)use(NULL);
    require(pthread_getspecific(*(pthread_key_t *)key) == &value, "the key's value changed");
    return NULL;
}

CHECK("the library works where no key of thread-specific data is left")
{
    pthread_key_t first, other;
    require(pthread_key_create(&first, NULL) == 0, "pthread_key_create failed");
    while (pthread_key_create(&other, NULL) == 0) continue;
    use_here_and_in_threads();
    (void)thread_end(thread_start(use_beside_a_key, &first));
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: late_load LIBHZ MODULE [TEXT]\n");
        return 2;
    }
    library = argv[1];
    module = argv[2];
    return run_checks(argc - 2, argv + 2);
}
