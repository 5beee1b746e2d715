/*
 * Waking a recorder that sleeps: see ring.h.
 */
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"

/* How /proc/PID/maps calls a segment without a key. Its inode is the segment's id. */
static const char segment_name[] = "/SYSV00000000";

/* The segment that a line of /proc/PID/maps is about; -1: it is about something else. */
static int segment_of(const char *line)
{
    int id;
    if (strstr(line, segment_name) == NULL) return -1;
    return sscanf(line, "%*x-%*x rw-s %*x %*x:%*x %d", &id) == 1 ? id : -1;
}

/* The bell in a segment; NULL: it holds none, or this user may not ring it. */
static hz_bell *bell_in(int segment)
{
    struct shmid_ds about;
    if (shmctl(segment, IPC_STAT, &about) != 0 || about.shm_segsz != sizeof(hz_bell)) return NULL;
    void *mapped = shmat(segment, NULL, 0);
    if (mapped == (void *)-1) return NULL;
    hz_bell *bell = mapped;
    if (bell->magic == HZ_BELL_MAGIC) return bell;
    (void)shmdt(mapped);
    return NULL;
}

static FILE *open_maps(pid_t pid)
{
    char path[64];
    struct stat owner;
    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    if (stat(path, &owner) != 0) hz_refuse("--pid %d: there is no such process", (int)pid);
    FILE *maps = fopen(path, "re");
    if (maps == NULL)
        hz_refuse("--pid %d: it runs as another user (%u), or its memory is closed to others: %s",
                  (int)pid, (unsigned)owner.st_uid, strerror(errno));
    return maps;
}

/* Whether the pool that was named last is still being filled: what emptied it then, does now. */
static bool is_ringing(const hz_bell *bell)
{
    char path[HZ_BELL_PATH_BYTES];
    int pid, number, end = 0;
    memcpy(path, bell->pool_path, sizeof path);
    if (memchr(path, '\0', sizeof path) == NULL ||
        sscanf(path, "/proc/%d/fd/%d%n", &pid, &number, &end) != 2 || path[end] != '\0')
        return false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    hz_pool head = {0};
    const ssize_t length = pread(fd, &head, sizeof head, 0);
    (void)close(fd);
    return length == (ssize_t)sizeof head && head.magic == HZ_POOL_MAGIC &&
           atomic_load(&head.ended) == HZ_POOL_OPEN;
}

hz_bell *hz_bell_find(pid_t pid)
{
    FILE *maps = open_maps(pid);
    char *line = NULL;
    size_t room = 0;
    hz_bell *found = NULL;
    while (found == NULL && getline(&line, &room, maps) > 0) {
        const int segment = segment_of(line);
        if (segment >= 0) found = bell_in(segment);
    }
    free(line);
    (void)fclose(maps);
    if (found == NULL)
        hz_refuse("--pid %d: it has no recorder that sleeps; start it with "
                  "HZ_RECORD=asleep LD_PRELOAD=libhz-recorder.so",
                  (int)pid);
    if (found->version != HZ_LOG_VERSION)
        hz_refuse("--pid %d: its recorder is of another version of hztune", (int)pid);
    if (is_ringing(found)) hz_refuse("--pid %d: it is being recorded already", (int)pid);
    return found;
}

void hz_bell_ring(hz_bell *bell, const char *pool_path)
{
    (void)snprintf(bell->pool_path, sizeof bell->pool_path, "%s", pool_path);
    atomic_fetch_add(&bell->rings, 1);
}
