/*
 * Becoming a program whose life is tied to its parent's: see tie.h.
 */
#include "tie.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"

enum { PARENT = 2, ENVIRONMENT, REPORT, PROGRAM }; /* where the words stand */

static void write_once(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    (void)!write(fd, text, strlen(text));
    (void)close(fd);
}

void hz_tie_to(int parent, const char *oom_score_adj)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(HZ_STATUS_FAILED);
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    write_once("/proc/self/oom_score_adj", oom_score_adj);
}

/* Reads a whole file and puts a zero byte behind it. */
static char *read_whole(int fd, size_t *length)
{
    struct stat about;
    if (fstat(fd, &about) != 0) hz_fail("--tie: descriptor %d: %s", fd, strerror(errno));
    const size_t size = (size_t)about.st_size;
    char *text = calloc(size + 1, 1);
    if (text == NULL) hz_fail("no memory for an environment");
    size_t done = 0;
    while (done < size) {
        const ssize_t got = pread(fd, text + done, size - done, (off_t)done);
        if (got <= 0) hz_fail("--tie: descriptor %d cannot be read", fd);
        done += (size_t)got;
    }
    *length = size;
    return text;
}

/* The variables that a descriptor holds, as exec wants them; never freed. */
static char **read_environment(int fd)
{
    size_t length;
    size_t count = 0;
    char *text = read_whole(fd, &length);
    for (size_t i = 0; i < length; i++) count += text[i] == '\0';
    char **variables = calloc(count + 2, sizeof *variables);
    if (variables == NULL) hz_fail("no memory for an environment");
    count = 0;
    for (char *at = text; at < text + length; at += strlen(at) + 1) variables[count++] = at;
    return variables;
}

_Noreturn void hz_tie(int argc, char **argv)
{
    if (argc <= PROGRAM)
        hz_refuse("usage: hz-launch --tie PARENT ENVIRONMENT REPORT PROGRAM ARGUMENTS...");
    const int parent = (int)hz_parse_whole("tie", argv[PARENT], 1, INT_MAX);
    const int environment_fd = (int)hz_parse_whole("tie", argv[ENVIRONMENT], 0, INT_MAX);
    const int report_fd = (int)hz_parse_whole("tie", argv[REPORT], 0, INT_MAX);
    hz_tie_to(parent, "500");
    environ = read_environment(environment_fd); /* its PATH is where PROGRAM is looked for */
    (void)close(environment_fd);
    (void)fcntl(report_fd, F_SETFD, FD_CLOEXEC);
    (void)execvp(argv[PROGRAM], argv + PROGRAM);
    const int why = errno;
    (void)!write(report_fd, &why, sizeof why);
    _exit(HZ_STATUS_FAILED);
}
