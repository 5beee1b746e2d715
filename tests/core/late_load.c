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
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MODULES = 30, TLS_BYTES_MAX = 64 };

static const char *library;
static const char *module;

static size_t tls_bytes;

static int note_tls(struct dl_phdr_info *info, size_t size, void *name)
{
    (void)size;
    for (size_t i = 0; strstr(info->dlpi_name, name) != NULL && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS) tls_bytes = info->dlpi_phdr[i].p_memsz;
    return 0;
}

static void *load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    require(handle != NULL, "dlopen: %s", dlerror());
    return handle;
}

/* Loads a copy of the module, as a file of its own: the same file twice would be one library. */
static void load_copy_of_module(void)
{
    char path[64];
    struct stat status;
    const int from = open(module, O_RDONLY | O_CLOEXEC);
    const int to = memfd_create("module", 0);
    require(from >= 0 && to >= 0 && fstat(from, &status) == 0, "cannot copy %s: %s", module,
            strerror(errno));
    require(sendfile(to, from, NULL, (size_t)status.st_size) == status.st_size, "sendfile: %s",
            strerror(errno));
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", to);
    int (*number)(void) = NULL;
    *(void **)&number = dlsym(load(path), "module_number");
    require(number != NULL && number() == 7, "the module is broken");
    (void)close(from); /* `to` stays open: a new descriptor makes a new path */
}

CHECK("the library's static TLS is at most 64 bytes")
{
    char real[4096];
    (void)load(library);
    require(realpath(library, real) != NULL, "realpath: %s", strerror(errno));
    (void)dl_iterate_phdr(note_tls, strrchr(real, '/'));
    require(tls_bytes > 0 && tls_bytes <= TLS_BYTES_MAX, "it is %zu bytes", tls_bytes);
}

typedef struct interface {
    void *(*allocate)(size_t size);
    void (*release)(void *block);
} interface;

static void *use(void *argument)
{
    const interface *hz = argument;
    char *blocks[500];
    for (size_t i = 0; i < COUNT(blocks); i++) {
        blocks[i] = hz->allocate(i * 20 + 1);
        require(blocks[i] != NULL, "hz_malloc(%zu) gave NULL", i * 20 + 1);
        memset(blocks[i], (int)i, i * 20 + 1);
    }
    for (size_t i = 0; i < COUNT(blocks); i++) {
        require(blocks[i][i * 20] == (char)i, "block %zu changed", i);
        hz->release(blocks[i]);
    }
    return NULL;
}

static interface find(void *handle)
{
    interface hz;
    *(void **)&hz.allocate = dlsym(handle, "hz_malloc");
    *(void **)&hz.release = dlsym(handle, "hz_free");
    require(hz.allocate != NULL && hz.release != NULL, "the library has no hz_malloc and hz_free");
    return hz;
}

static void use_in_threads(interface *hz)
{
    for (int i = 0; i < 10; i++) {
        (void)thread_end(thread_start(use, hz));
    }
}

CHECK("the library can be loaded after thirty libraries with TLS")
{
    for (int i = 0; i < MODULES; i++) load_copy_of_module();
    interface hz = find(load(library));
    (void)use(&hz);
    use_in_threads(&hz);
}

static pthread_barrier_t barrier;

static void *use_and_outlive(void *argument)
{
    (void)use(argument);
    (void)pthread_barrier_wait(&barrier); /* used */
    (void)pthread_barrier_wait(&barrier); /* closed */
    return NULL; /* whatever the library set up for this thread's end runs now */
}

CHECK("closing the library does not harm threads that used it")
{
    void *handle = load(library);
    interface hz = find(handle);
    (void)pthread_barrier_init(&barrier, NULL, 2);
    const pthread_t thread = thread_start(use_and_outlive, &hz);
    (void)pthread_barrier_wait(&barrier);
    require(dlclose(handle) == 0, "dlclose: %s", dlerror());
    (void)pthread_barrier_wait(&barrier);
    (void)thread_end(thread);
    hz = find(load(library));
    (void)use(&hz);
}

static void *use_and_ask_for_key(void *key)
{
    int value = 0;
    interface hz = find(load(library));
    require(pthread_setspecific(*(pthread_key_t *)key, &value) == 0, "pthread_setspecific");
    (void)use(&hz);
    require(pthread_getspecific(*(pthread_key_t *)key) == &value, "the key's value changed");
    return NULL;
}

CHECK("the library works where no key of thread-specific data is left")
{
    pthread_key_t first, other;
    require(pthread_key_create(&first, NULL) == 0, "pthread_key_create failed");
    while (pthread_key_create(&other, NULL) == 0) continue;
    interface hz = find(load(library));
    (void)use(&hz);
    use_in_threads(&hz);
    (void)thread_end(thread_start(use_and_ask_for_key, &first));
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
