/*
 * libhz-agent.so: answers other processes about the allocators of a process that does not run on
 * hz. It is preloaded, beside any allocator, and changes nothing about memory.
 *
 *     stats    what each allocator holds, by its own account, its settings and levers
 *     trim     each gives back what it does not need
 *     set, govern    change levers (levers.c; lease.h)
 *
 * The thread and the socket are those of hz (serve.c). A process on hz answers by itself under
 * HZ_CONTROL=1; there the agent does nothing, nor does it in a set-uid program.
 *
 * No allocator is linked: each is asked by the names of its own interface, and what is not in the
 * process is not found. The names and meanings of their numbers are in their own manuals:
 * jemalloc(3), mimalloc.h, gperftools/malloc_extension.h, mallinfo(3).
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "agent.h"
#include "serve.h"
#include "text.h"

void *function_named(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* The first library behind the program that defines a function. */
static const char *library_of(const char *name)
{
    Dl_info info;
    struct link_map *each = NULL;
    const char *found = "";
    void *program = dlopen(NULL, RTLD_LAZY);
    if (program == NULL || dlinfo(program, RTLD_DI_LINKMAP, &each) != 0) return found;
    while (found[0] == '\0' && (each = each->l_next) != NULL) {
        void *library = dlopen(each->l_name, RTLD_LAZY | RTLD_NOLOAD);
        void *function = library != NULL ? dlsym(library, name) : NULL;
        if (function != NULL && dladdr(function, &info) != 0 && info.dli_fname == each->l_name)
            found = each->l_name;
        if (library != NULL) (void)dlclose(library);
    }
    (void)dlclose(program);
    return found;
}

/* The file that defines a function. A program that is not position-independent may have the name
 * with an address, for pointers to the function, and no definition. */
static const char *file_of(const char *name)
{
    Dl_info info;
    ElfW(Sym) *symbol = NULL;
    void *function = function_named(name);
    if (function == NULL || dladdr1(function, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0)
        return "";
    return symbol != NULL && symbol->st_shndx == SHN_UNDEF ? library_of(name) : info.dli_fname;
}

/* The file that gives the process malloc. */
static const char *agent_provider(void)
{
    return file_of("malloc");
}

/* ---- texts ---------------------------------------------------------------------------------- */

static void add_name(hz_text *answer, const char *allocator, const char *version)
{
    hz_text_add(answer, "{\"allocator\":\"%s\",\"version\":", allocator);
    hz_text_add_quoted(answer, version);
}

static void add_figure(hz_text *answer, const char *name, size_t number)
{
    hz_text_add(answer, ",\"%s\":%zu", name, number);
}

/* ---- jemalloc ------------------------------------------------------------------------------- */

/* jemalloc's names for itself: in programs of Rust, and where it stands beside another malloc, they
 * have a prefix. */
jemalloc_ctl *jemalloc_find(void)
{
    static const char *const names[] = {"mallctl", "_rjem_mallctl", "je_mallctl"};
    jemalloc_ctl *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !FIND(found, names[i]); i++) continue;
    return found;
}

bool jemalloc_read(const char *name, void *value, size_t size)
{
    size_t length = size;
    return jemalloc_find()(name, value, &length, NULL, 0) == 0 && length == size;
}

static void jemalloc_add_size(hz_text *answer, const char *key, const char *name)
{
    size_t value;
    if (jemalloc_read(name, &value, sizeof value)) add_figure(answer, key, value);
}

static const struct {
    const char *key;  /* the name of the option, as in MALLOC_CONF */
    const char *name; /* of its present value for mallctl */
    enum { IS_SWITCH, IS_NUMBER, IS_WORD } type;
} jemalloc_settings[] = {
    {"narenas", "opt.narenas", IS_NUMBER},
    {"dirty_decay_ms", "arenas.dirty_decay_ms", IS_NUMBER},
    {"muzzy_decay_ms", "arenas.muzzy_decay_ms", IS_NUMBER},
    {"background_thread", "background_thread", IS_SWITCH},
    {"tcache", "opt.tcache", IS_SWITCH},
    {"retain", "opt.retain", IS_SWITCH},
    {"thp", "opt.thp", IS_WORD},
    {"metadata_thp", "opt.metadata_thp", IS_WORD},
    {"percpu_arena", "opt.percpu_arena", IS_WORD},
};

/* Left out is what this jemalloc has none of. A shorter value fills the start of a longer buffer,
 * which mallctl then calls an invalid one. */
static void jemalloc_add_settings(hz_text *answer)
{
    const char *separator = "";
    hz_text_add(answer, ",\"settings\":{");
    for (size_t i = 0; i < sizeof jemalloc_settings / sizeof jemalloc_settings[0]; i++) {
        int64_t value = 0;
        size_t size = sizeof value;
        if (jemalloc_find()(jemalloc_settings[i].name, &value, &size, NULL, 0) == ENOENT) continue;
        hz_text_add(answer, "%s\"%s\":", separator, jemalloc_settings[i].key);
        if (jemalloc_settings[i].type == IS_NUMBER)
            hz_text_add(answer, "%" PRId64, value);
        else if (jemalloc_settings[i].type == IS_WORD)
            hz_text_add_quoted(answer, (const char *)(uintptr_t)value);
        else
            hz_text_add_quoted(answer, value != 0 ? "true" : "false");
        separator = ",";
    }
    hz_text_add(answer, "}");
}

/* The numbers are those of the last epoch, so a new one is begun first. */
static bool agent_add_jemalloc(hz_text *answer)
{
    jemalloc_ctl *control = jemalloc_find();
    uint64_t epoch = 1;
    const char *version = "";
    if (control == NULL) return false;
    (void)control("epoch", NULL, NULL, &epoch, sizeof epoch);
    (void)jemalloc_read("version", &version, sizeof version);
    add_name(answer, "jemalloc", version);
    jemalloc_add_size(answer, "live_bytes", "stats.allocated");
    jemalloc_add_size(answer, "held_bytes", "stats.resident");
    jemalloc_add_size(answer, "metadata_bytes", "stats.metadata");
    jemalloc_add_settings(answer);
    return true;
}

/* 4096 is MALLCTL_ARENAS_ALL. */
static bool agent_trim_jemalloc(void)
{
    jemalloc_ctl *control = jemalloc_find();
    return control != NULL && control("arena.4096.purge", NULL, NULL, NULL, 0) == 0;
}

/* ---- mimalloc ------------------------------------------------------------------------------- */

typedef void mimalloc_info(size_t *elapsed_ms, size_t *user_ms, size_t *system_ms, size_t *resident,
                           size_t *peak_resident, size_t *commit, size_t *peak_commit,
                           size_t *faults);

/* It has one or two digits for the minor part, and one or two for the last. */
int mimalloc_version(void)
{
    int (*version)(void);
    const int number = FIND(version, "mi_version") ? version() : 0;
    const int last = number < 1000 ? 10 : 100;
    const int minor = number < 10000 ? 10 : 100;
    return number / last / minor * 10000 + number / last % minor * 100 + number % last;
}

/* A release build does not count live bytes; in some versions what is committed falls below 0. */
static bool agent_add_mimalloc(hz_text *answer)
{
    mimalloc_info *info;
    const int version = mimalloc_version();
    char text[32];
    size_t commit = 0;
    if (!FIND(info, "mi_process_info") || version == 0) return false;
    snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    info(NULL, NULL, NULL, NULL, NULL, &commit, NULL, NULL);
    add_name(answer, "mimalloc", text);
    if (commit <= SIZE_MAX / 2) add_figure(answer, "held_bytes", commit);
    hz_text_add(answer, ",\"settings\":{}");
    return true;
}

static bool agent_trim_mimalloc(void)
{
    void (*collect)(bool is_forced);
    if (!FIND(collect, "mi_collect")) return false;
    collect(true);
    return true;
}

/* ---- tcmalloc (gperftools) ------------------------------------------------------------------ */

static size_t tcmalloc_number(const char *name)
{
    int (*property)(const char *name, size_t *value);
    size_t value = 0;
    return FIND(property, "MallocExtension_GetNumericProperty") && property(name, &value) ? value
                                                                                          : 0;
}

static bool agent_add_tcmalloc(hz_text *answer)
{
    const char *(*version)(int *major, int *minor, const char **patch);
    int major, minor;
    const char *patch;
    if (!FIND(version, "tc_version") ||
        function_named("MallocExtension_GetNumericProperty") == NULL)
        return false;
    add_name(answer, "tcmalloc", version(&major, &minor, &patch));
    add_figure(answer, "live_bytes", tcmalloc_number("generic.current_allocated_bytes"));
    add_figure(answer, "held_bytes",
               tcmalloc_number("generic.heap_size") -
                   tcmalloc_number("tcmalloc.pageheap_unmapped_bytes"));
    add_figure(answer, "cached_bytes",
               tcmalloc_number("tcmalloc.current_total_thread_cache_bytes"));
    hz_text_add(answer, ",\"settings\":{\"max_total_thread_cache_bytes\":%zu}",
                tcmalloc_number("tcmalloc.max_total_thread_cache_bytes"));
    return true;
}

static bool agent_trim_tcmalloc(void)
{
    void (*release)(void);
    if (!FIND(release, "MallocExtension_ReleaseFreeMemory")) return false;
    release();
    return true;
}

/* ---- google/tcmalloc ------------------------------------------------------------------------ */

static size_t google_number(const char *name)
{
    bool (*property)(const char *name, size_t length, size_t *value);
    size_t value = 0;
    const bool is_there = FIND(property, "MallocExtension_Internal_GetNumericProperty");
    return is_there && property(name, strlen(name), &value) ? value : 0;
}

/* It has no version. */
static bool agent_add_google(hz_text *answer)
{
    if (function_named("MallocExtension_Internal_GetNumericProperty") == NULL) return false;
    add_name(answer, "google_tcmalloc", "");
    add_figure(answer, "live_bytes", google_number("generic.current_allocated_bytes"));
    add_figure(answer, "held_bytes", google_number("generic.physical_memory_used"));
    add_figure(answer, "cached_bytes",
               google_number("tcmalloc.cpu_free") + google_number("tcmalloc.thread_cache_free"));
    hz_text_add(answer, ",\"settings\":{}");
    return true;
}

static bool agent_trim_google(void)
{
    size_t (*release)(size_t bytes);
    if (!FIND(release, "MallocExtension_Internal_ReleaseMemoryToSystem")) return false;
    (void)release(SIZE_MAX / 2);
    return true;
}

/* ---- glibc ---------------------------------------------------------------------------------- */

bool is_on_glibc(void)
{
    return function_named("mallinfo2") != NULL &&
           strcmp(file_of("mallinfo2"), agent_provider()) == 0 &&
           strcmp(file_of("gnu_get_libc_version"), agent_provider()) == 0;
}

static bool agent_add_glibc(hz_text *answer)
{
    struct mallinfo2 (*info)(void);
    const char *(*version)(void);
    if (!is_on_glibc() || !FIND(info, "mallinfo2") || !FIND(version, "gnu_get_libc_version"))
        return false;
    const struct mallinfo2 now = info();
    add_name(answer, "glibc", version());
    add_figure(answer, "live_bytes", now.uordblks + now.hblkhd);
    add_figure(answer, "held_bytes", now.arena + now.hblkhd);
    hz_text_add(answer, ",\"settings\":{}");
    return true;
}

static bool agent_trim_glibc(void)
{
    int (*trim)(size_t pad);
    if (!is_on_glibc() || !FIND(trim, "malloc_trim")) return false;
    (void)trim(0);
    return true;
}

/* ---- answers -------------------------------------------------------------------------------- */

/* `add` begins an object with what an allocator holds and its settings, `trim` has it give back
 * what it does not need; false: the process has no such allocator. */
static const struct {
    const char *name;
    bool (*add)(hz_text *answer);
    bool (*trim)(void);
} allocators[] = {
    {"jemalloc", agent_add_jemalloc, agent_trim_jemalloc},
    {"mimalloc", agent_add_mimalloc, agent_trim_mimalloc},
    {"tcmalloc", agent_add_tcmalloc, agent_trim_tcmalloc},
    {"google_tcmalloc", agent_add_google, agent_trim_google},
    {"glibc", agent_add_glibc, agent_trim_glibc},
};

static void answer_with_parts(hz_text *answer, bool trims)
{
    hz_serve_begin(answer, "agent");
    hz_text_add(answer, ",\"provider\":");
    hz_text_add_quoted(answer, agent_provider());
    hz_text_add(answer, ",\"%s\":[", trims ? "trimmed" : "parts");
    const size_t start = answer->length;
    for (size_t i = 0; i < sizeof allocators / sizeof allocators[0]; i++) {
        const size_t before = answer->length;
        if (before > start) hz_text_add(answer, ",");
        const bool is_there = trims ? allocators[i].trim() : allocators[i].add(answer);
        if (!is_there) {
            answer->length = before;
        } else if (trims) {
            hz_text_add_quoted(answer, allocators[i].name);
        } else {
            agent_add_levers(answer, allocators[i].name);
            hz_text_add(answer, "}");
        }
    }
    hz_text_add(answer, "]}");
}

static bool answer_agent(const char *word, hz_text *answer)
{
    const bool trims = strcmp(word, "trim") == 0;
    if (!trims && strcmp(word, "stats") != 0) return false;
    answer_with_parts(answer, trims);
    return true;
}

static void say_to_stderr(const char *line)
{
    ssize_t written = write(STDERR_FILENO, line, strlen(line));
    (void)written;
}

__attribute__((constructor)) static void agent_begins(void)
{
    if (getauxval(AT_SECURE) != 0) return;
    if (function_named("hz_version") != NULL && strcmp(file_of("hz_version"), agent_provider()) == 0)
        return; /* it answers itself */
    agent_levers_begin();
    hz_serve_start(answer_agent, &agent_levers, say_to_stderr);
}
