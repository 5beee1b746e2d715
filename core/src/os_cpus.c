/*
 * How many CPUs the process may use: those of its affinity, but no more than the quota of its
 * cgroup and of every cgroup above it.
 *
 * A cgroup is a directory. Which one is the process's, below the root of its hierarchy, stands in
 * /proc/self/cgroup; where that root is mounted, in /proc/self/mountinfo. There may be several
 * hierarchies: version 2, version 1 with the cpu controller, or both.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"
#include "os_call.h"
#include "text.h"

enum { LINE_BYTES = 1024 }; /* no line that matters is longer */

/* ---- lines of a file of any length ---------------------------------------------------------- */

typedef struct lines {
    long fd;
    char buffer[LINE_BYTES]; /* what was read from the file */
    size_t start, end;       /* the part that was not consumed yet */
} lines;

static bool lines_refill(lines *this)
{
    const long got = HZ_OS_CALL(SYS_read, this->fd, (long)this->buffer, sizeof this->buffer);
    this->start = 0;
    this->end = got > 0 ? (size_t)got : 0;
    return got > 0;
}

/* The next line, cut off at LINE_BYTES - 1; false at the end. */
static bool lines_next(lines *this, char line[LINE_BYTES])
{
    size_t length = 0;
    bool any = false;
    while (this->start < this->end || lines_refill(this)) {
        const char next = this->buffer[this->start++];
        any = true;
        if (next == '\n') break;
        if (length < LINE_BYTES - 1) line[length++] = next;
    }
    line[length] = '\0';
    return any;
}

static bool lines_open(lines *this, const char *path)
{
    this->start = this->end = 0;
    this->fd = HZ_OS_CALL(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC);
    return this->fd >= 0;
}

/* ---- the cgroup's directory ----------------------------------------------------------------- */

/* Whether a comma-separated list has a word. */
static bool has_word(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (; list != NULL; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, word, length) == 0 && (list[length] == ',' || list[length] == '\0'))
            return true;
    }
    return false;
}

/* The path of a line "number:controllers:path", NULL if it is of another hierarchy. Version 2 has
 * no controllers there. */
static const char *path_in(char *line, bool is_v2)
{
    char *controllers = strchr(line, ':');
    char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (path == NULL) return NULL;
    *path++ = '\0';
    const bool is_it = is_v2 ? controllers[1] == '\0' : has_word(controllers + 1, "cpu");
    return is_it ? path : NULL;
}

/* The process's own cgroup, below the root of its hierarchy; "" when there is none. */
static void find_own(char own[LINE_BYTES], bool is_v2)
{
    lines file;
    char line[LINE_BYTES];
    own[0] = '\0';
    if (!lines_open(&file, "/proc/self/cgroup")) return;
    while (lines_next(&file, line)) {
        const char *path = path_in(line, is_v2);
        if (path != NULL) memcpy(own, path, strlen(path) + 1);
    }
    (void)HZ_OS_CALL(SYS_close, file.fd);
}

/* A mounted hierarchy. */
typedef struct mount {
    char *root;  /* what of it is mounted */
    char *point; /* where */
    bool is_v2;
} mount;

/* Parses "id parent device root point options ... - type source superoptions"; false if it is no
 * hierarchy that may hold a quota. */
static bool mount_parse(char *line, mount *this)
{
    char *rest = strstr(line, " - "), *next = NULL;
    if (rest == NULL) return false;
    *rest = '\0';
    for (int i = 0; i < 4; i++) this->root = strtok_r(i == 0 ? line : NULL, " ", &next);
    this->point = strtok_r(NULL, " ", &next);
    const char *type = strtok_r(rest + 3, " ", &next);
    if (this->point == NULL || type == NULL || strtok_r(NULL, " ", &next) == NULL) return false;
    const char *options = strtok_r(NULL, " ", &next);
    this->is_v2 = strcmp(type, "cgroup2") == 0;
    return this->is_v2 || (strcmp(type, "cgroup") == 0 && has_word(options, "cpu"));
}

/* What follows a mount's root in a path: "" when the path is not below that, as where the cgroup is
 * seen from another namespace. */
static const char *below(const char *root, const char *path)
{
    const size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(path, root, length) != 0) return "";
    const char *rest = path + length;
    return rest[0] == '/' && strncmp(rest, "/..", 3) != 0 && rest[1] != '\0' ? rest : "";
}

/* ---- quotas --------------------------------------------------------------------------------- */

static bool read_in(const char *directory, const char *name, char text[64])
{
    char start[2 * LINE_BYTES + 32];
    hz_text path = {start, sizeof start, 0};
    hz_text_put(&path, directory);
    hz_text_put(&path, "/");
    hz_text_put(&path, name);
    return hz_text_read(start, text, 64) > 0;
}

/* The quota, and the time in which it may be used up; false without one ("max" or -1). */
static bool read_quota(const char *directory, bool is_v2, long long *quota, long long *period)
{
    char text[64], *end = text;
    if (!read_in(directory, is_v2 ? "cpu.max" : "cpu.cfs_quota_us", text)) return false;
    *quota = strtoll(text, &end, 10);
    if (end == text || *quota <= 0) return false;
    if (!is_v2 && !read_in(directory, "cpu.cfs_period_us", end = text)) return false;
    *period = strtoll(end, NULL, 10);
    return *period > 0;
}

static uint32_t directory_cpus(const char *directory, bool is_v2)
{
    long long quota, period;
    if (!read_quota(directory, is_v2, &quota, &period)) return UINT32_MAX;
    const long long cpus = quota / period + (quota % period != 0);
    return cpus < UINT32_MAX ? (uint32_t)cpus : UINT32_MAX;
}

/* The least quota of the process's cgroup and of all above it that are mounted, in CPUs. */
static uint32_t mount_cpus(const mount *this)
{
    char own[LINE_BYTES], directory[2 * LINE_BYTES];
    uint32_t least = UINT32_MAX;
    find_own(own, this->is_v2);
    const size_t top = strlen(this->point);
    hz_text path = {directory, sizeof directory, 0};
    hz_text_put(&path, this->point);
    hz_text_put(&path, below(this->root, own));
    for (;;) {
        const uint32_t cpus = directory_cpus(directory, this->is_v2);
        if (cpus < least) least = cpus;
        if (directory[top] == '\0') return least;
        *strrchr(directory, '/') = '\0';
    }
}

static uint32_t quota_cpus(void)
{
    lines file;
    mount found;
    char line[LINE_BYTES];
    uint32_t least = UINT32_MAX;
    if (!lines_open(&file, "/proc/self/mountinfo")) return least;
    while (lines_next(&file, line)) {
        const uint32_t cpus = mount_parse(line, &found) ? mount_cpus(&found) : UINT32_MAX;
        if (cpus < least) least = cpus;
    }
    (void)HZ_OS_CALL(SYS_close, file.fd);
    return least;
}

/* Without the C library's cpu_set_t of 1024 CPUs: the kernel refuses a set that is too short. */
bool hz_os_affinity(hz_os_cpu_set *cpus)
{
    const long bytes = HZ_OS_CALL(SYS_sched_getaffinity, 0, sizeof *cpus, (long)cpus);
    if (bytes > 0) memset((char *)cpus + bytes, 0, sizeof *cpus - (size_t)bytes);
    return bytes > 0;
}

uint32_t hz_os_cpus_allowed(void)
{
    hz_os_cpu_set set;
    uint32_t cpus = 0;
    if (!hz_os_affinity(&set)) return 1;
    for (size_t i = 0; i < sizeof set.words / sizeof set.words[0]; i++)
        cpus += (uint32_t)__builtin_popcountl(set.words[i]);
    return cpus > 0 ? cpus : 1;
}

uint32_t hz_os_cpus(void)
{
    const uint32_t cpus = hz_os_cpus_allowed(), quota = quota_cpus();
    return quota < cpus ? quota : cpus;
}
