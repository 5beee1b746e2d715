/* The harness of the core's tests; what it offers is told in check.h. */
#include "check.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STATUS_FAILED = 99, CHECKS_MAX = 64, CHILD_SECONDS = 30 };

typedef struct check {
    const char *sentence;
    void (*run)(void);
    unsigned seconds; /* a check that takes longer hangs; 0: it is a PROGRAM */
} check;

static check checks[CHECKS_MAX];
static size_t count;

void check_add(const char *sentence, void (*run)(void), unsigned seconds)
{
    if (count == CHECKS_MAX) abort();
    checks[count++] = (check){sentence, run, seconds};
}

void check_failed(const char *file, int line, const char *format, ...)
{
    char text[1024];
    const char *slash = strrchr(file, '/');
    int used = snprintf(text, sizeof text, "    %s:%d: ", slash != NULL ? slash + 1 : file, line);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(text + used, sizeof text - (size_t)used - 2, format, arguments);
    va_end(arguments);
    used = used > (int)sizeof text - 2 ? (int)sizeof text - 2 : used;
    text[used++] = '\n';
    if (write(STDERR_FILENO, text, (size_t)used) < 0) _exit(STATUS_FAILED);
    _exit(STATUS_FAILED);
}

/* ---- running -------------------------------------------------------------------------------- */

static void become_child(unsigned seconds)
{
    const struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(seconds);
}

static void describe(int status, unsigned seconds)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        printf("    hung: no end after %u s\n", seconds);
    else if (WIFSIGNALED(status))
        printf("    killed by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != STATUS_FAILED)
        printf("    exited with status %d\n", WEXITSTATUS(status));
}

static int status_of(pid_t child)
{
    int status = 0;
    require(child > 0, "fork: %s", strerror(errno));
    while (waitpid(child, &status, 0) < 0) require(errno == EINTR, "waitpid: %s", strerror(errno));
    return status;
}

static int run_check(const check *this)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        become_child(this->seconds);
        this->run();
        exit(0);
    }
    const int status = status_of(child);
    printf("%s - %s\n", status == 0 ? "ok" : "not ok", this->sentence);
    if (status != 0) describe(status, this->seconds);
    return status == 0;
}

static void require_allocator(void)
{
    const char *wanted = getenv("TEST_ALLOCATOR");
    Dl_info info;
    memset(&info, 0, sizeof info);
    (void)dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info);
    const char *found = info.dli_fname != NULL ? info.dli_fname : "?";
    if (wanted != NULL && strstr(found, wanted) == NULL) {
        fprintf(stderr, "malloc comes from %s, but %s is to be tested\n", found, wanted);
        exit(1);
    }
    printf("# malloc comes from %s\n", found);
}

static int run_program(const char *word)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(checks[i].sentence, word) != 0) continue;
        checks[i].run();
        return 0;
    }
    fprintf(stderr, "there is no %s\n", word);
    return 2;
}

int run_checks(int argc, char **argv)
{
    size_t ran = 0;
    size_t held = 0;
    if (argc == 2 && strncmp(argv[1], "--", 2) == 0) return run_program(argv[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    require_allocator();
    for (size_t i = 0; i < count; i++) {
        if (checks[i].seconds == 0) continue;
        if (argc >= 2 && strstr(checks[i].sentence, argv[1]) == NULL) continue;
        ran++;
        held += (size_t)run_check(&checks[i]);
    }
    printf("# %zu of %zu checks held\n", held, ran);
    return ran > 0 && held == ran ? 0 : 1;
}

int run_check_here(const char *sentence, void (*run)(void), unsigned seconds)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    require_allocator();
    alarm(seconds);
    run();
    printf("ok - %s\n", sentence);
    return 0;
}

static void drain(int fd, ending *result)
{
    size_t used = 0;
    char spill[512];
    for (;;) {
        const size_t room = sizeof result->said - 1 - used;
        const ssize_t got =
            room > 0 ? read(fd, result->said + used, room) : read(fd, spill, sizeof spill);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        used += room > 0 ? (size_t)got : 0;
    }
    result->said[used] = '\0';
}

void run_apart(void (*act)(void *), void *subject, unsigned seconds, ending *result)
{
    int ends[2];
    memset(result, 0, sizeof *result);
    require(pipe(ends) == 0, "pipe: %s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        become_child(seconds);
        (void)dup2(ends[1], STDERR_FILENO);
        (void)close(ends[0]);
        (void)close(ends[1]);
        act(subject);
        _exit(0);
    }
    (void)close(ends[1]);
    drain(ends[0], result);
    (void)close(ends[0]);
    const int status = status_of(child);
    result->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    result->status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static void require_good(const ending *result, const char *word)
{
    require(result->signal == 0 && result->status == 0, "%s: signal %d, status %d, said '%.300s'",
            word, result->signal, result->status, result->said);
}

void require_well(void (*act)(void *), void *subject, unsigned seconds)
{
    ending result;
    run_apart(act, subject, seconds, &result);
    require_good(&result, "a child");
}

void launch_now(void *subject)
{
    static char settings[1024];
    const launch *this = subject;
    const struct rlimit limit = {this->bytes_most, this->bytes_most};
    (void)snprintf(settings, sizeof settings, "%s", this->settings != NULL ? this->settings : "");
    for (char *one = strtok(settings, " "); one != NULL; one = strtok(NULL, " ")) (void)putenv(one);
    require(this->bytes_most == 0 || setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit: %s",
            strerror(errno));
    (void)dup2(STDERR_FILENO, STDOUT_FILENO);
    (void)execl(this->program, this->program, this->word, (char *)NULL);
    _exit(9);
}

void require_program(const char *word, size_t bytes_most, const char *settings)
{
    ending result;
    launch this = {"/proc/self/exe", word, settings, bytes_most};
    run_apart(launch_now, &this, CHILD_SECONDS, &result);
    require_good(&result, word);
}

/* ---- threads and children ------------------------------------------------------------------- */

pthread_t thread_start(void *(*run)(void *), const void *argument)
{
    pthread_t thread;
    const int why = pthread_create(&thread, NULL, run, (void *)(uintptr_t)argument);
    require(why == 0, "no thread: %s", strerror(why));
    return thread;
}

void *thread_end(pthread_t thread)
{
    void *result = NULL;
    const int why = pthread_join(thread, &result);
    require(why == 0, "a thread cannot be joined: %s", strerror(why));
    return result;
}

void crowd_start(crowd *all, size_t wanted, void *(*run)(void *))
{
    require(wanted <= CROWD_MOST, "%zu threads", wanted);
    all->count = wanted;
    for (size_t i = 0; i < wanted; i++) all->threads[i] = thread_start(run, (void *)(i + 1));
}

void crowd_end(const crowd *all)
{
    for (size_t i = 0; i < all->count; i++) (void)thread_end(all->threads[i]);
}

void require_child_ends(pid_t child)
{
    const int status = status_of(child);
    require(status == 0, "the child's wait status is %d", status);
}

void require_of_child(void (*act)(void))
{
    const pid_t child = fork();
    if (child == 0) {
        (void)alarm(CHILD_SECONDS);
        act();
        _exit(0);
    }
    require_child_ends(child);
}

void *filled_block(void *block, size_t size)
{
    require(block != NULL, "no memory for %zu bytes", size);
    return memset(block, 1, size);
}

/* ---- numbers -------------------------------------------------------------------------------- */

uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15)); /* splitmix64 */
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t number_chosen(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static int is_set(const char *variable, const char *word)
{
    const char *value = getenv(variable);
    return value != NULL && strcmp(value, word) == 0;
}

int is_full(void)
{
    return is_set("HZ_HARDENING", "full");
}

int is_hardened(void)
{
    return is_full() || is_set("HZ_HARDENING", "light");
}

int is_at_call(void)
{
    return is_set("HZ_DOUBLE_FREE", "at_call");
}

uint64_t seed_chosen(uint64_t otherwise)
{
    const uint64_t seed = number_chosen("TEST_SEED", otherwise);
    printf("# seed %llu (TEST_SEED=%llu repeats it)\n", (unsigned long long)seed,
           (unsigned long long)seed);
    return seed;
}

/* In the first line of a file that has it so. */
static size_t number_in(const char *path, const char *format)
{
    char line[256];
    size_t number = 0;
    FILE *file = fopen(path, "r");
    require(file != NULL, "cannot read %s", path);
    while (number == 0 && fgets(line, sizeof line, file) != NULL)
        (void)sscanf(line, format, &number);
    (void)fclose(file);
    require(number > 0, "%s has no \"%s\"", path, format);
    return number;
}

/* From smaps_rollup: the counters of statm are kept per CPU, and may be off by hundreds of KiB.
 * Pages of files are left out, as they come and go with what code has run. */
size_t resident_bytes(void)
{
    return number_in("/proc/self/smaps_rollup", "Anonymous: %zu") << 10;
}

size_t mapped_bytes(void)
{
    return number_in("/proc/self/statm", "%zu") * (size_t)sysconf(_SC_PAGESIZE);
}

size_t threads_now(void)
{
    return number_in("/proc/self/status", "Threads: %zu");
}

void wait_for_threads(size_t wanted)
{
    while (threads_now() != wanted) (void)usleep(10000);
}

size_t mapping_count(void)
{
    size_t lines = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    require(file != NULL, "cannot read /proc/self/maps");
    for (int c = fgetc(file); c != EOF; c = fgetc(file)) lines += c == '\n';
    (void)fclose(file);
    return lines;
}

uint64_t hz_counter(const char *name)
{
    static char json[65536];
    char key[128];
    size_t (*stats)(char *, size_t) = NULL;
    *(void **)&stats = dlsym(RTLD_DEFAULT, "hz_stats_json");
    require(stats != NULL, "hz is not in effect: there is no hz_stats_json");
    require(stats(json, sizeof json) < sizeof json, "hz_stats_json is longer than %zu bytes",
            sizeof json);
    (void)snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(json, key);
    require(at != NULL, "hz_stats_json has no \"%s\": %.400s", name, json);
    return strtoull(at + strlen(key), NULL, 10);
}
