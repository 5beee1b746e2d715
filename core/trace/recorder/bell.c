/*
 * The bell: see bell.h and log_format.h.
 */
#include "bell.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>

#include "../log_format.h"

static hz_bell *bell;
static unsigned heard; /* rings that were answered */

/*
 * The segment is given up as soon as it is mapped: the kernel removes it with this process, however
 * that ends. It needs no descriptor, which the program may close, and no path.
 */
bool hz_bell_hang(void)
{
    bell = NULL; /* a child does not have its parent's */
    heard = 0;
    const int id = shmget(IPC_PRIVATE, sizeof(hz_bell), IPC_CREAT | 0600);
    if (id < 0) return false;
    void *mapped = shmat(id, NULL, 0);
    (void)shmctl(id, IPC_RMID, NULL);
    if (mapped == (void *)-1) return false;
    if (madvise(mapped, sizeof(hz_bell), MADV_DONTFORK) != 0) {
        (void)shmdt(mapped);
        return false;
    }
    bell = mapped;
    bell->version = HZ_LOG_VERSION;
    bell->magic = HZ_BELL_MAGIC;
    return true;
}

bool hz_bell_rings(void)
{
    return bell != NULL && atomic_load_explicit(&bell->rings, memory_order_acquire) != heard;
}

bool hz_bell_answer(char *path, size_t size)
{
    heard = atomic_load_explicit(&bell->rings, memory_order_acquire);
    if (memchr(bell->pool_path, '\0', sizeof bell->pool_path) == NULL ||
        strlen(bell->pool_path) >= size)
        return false;
    strcpy(path, bell->pool_path);
    return true;
}
