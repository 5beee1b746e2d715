/*
 * A library to preload that writes down every call of the allocator: into the file WITNESS, which
 * is as long as the log may become. An allocation is written behind its call and a free before it,
 * so that the lives of one address never overlap in the log.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* One call. Numbers of kinds are those of trace_format.h. */
struct record {
    uint32_t kind;    /* what was called */
    uint32_t thread;  /* by which thread */
    uint64_t size;    /* bytes asked for, or told */
    uint64_t align;   /* asked for, or told; 0 */
    uint64_t address; /* of the block */
    uint64_t old;     /* that realloc was given */
};

/* The file. */
struct log {
    _Atomic uint64_t count;  /* calls so far */
    uint64_t unused[4];      /* so that the records are aligned as they are long */
    struct record records[]; /* as many as there is room for */
};

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static struct log *the_log;
static uint64_t room;

__attribute__((constructor)) static void open_log(void)
{
    struct stat about;
    const char *path = getenv("WITNESS");
    const int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || fstat(fd, &about) != 0) return;
    room = ((uint64_t)about.st_size - sizeof(struct log)) / sizeof(struct record);
    void *file = mmap(NULL, (size_t)about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file != MAP_FAILED) the_log = file;
}

static void write_down(uint32_t kind, size_t size, size_t align, const void *block, uint64_t old)
{
    if (the_log == NULL) return;
    const uint64_t at = atomic_fetch_add(&the_log->count, 1);
    if (at >= room) return;
    the_log->records[at] = (struct record){.kind = kind,
                                           .thread = (uint32_t)gettid(),
                                           .size = size,
                                           .align = align,
                                           .address = (uint64_t)(uintptr_t)block,
                                           .old = old};
}

static void *took(uint32_t kind, size_t size, size_t align, void *block)
{
    write_down(kind, size, align, block, 0);
    return block;
}

static void give(uint32_t kind, size_t size, size_t align, void *block)
{
    if (block != NULL) write_down(kind, size, align, block, 0);
    __libc_free(block);
}

/* A function that gives a block of `size` bytes, and one that ends a block. */
#define TAKES(kind, name, parameters, align, block)                                                \
    void *name parameters                                                                          \
    {                                                                                              \
        return took(kind, size, align, block);                                                     \
    }
#define GIVES(kind, name, parameters, size, align)                                                 \
    void name parameters                                                                           \
    {                                                                                              \
        give(kind, size, align, block);                                                            \
    }

TAKES(1, malloc, (size_t size), 0, __libc_malloc(size))
TAKES(3, aligned_alloc, (size_t align, size_t size), align, __libc_memalign(align, size))
TAKES(4, memalign, (size_t align, size_t size), align, __libc_memalign(align, size))
TAKES(6, valloc, (size_t size), 0, __libc_memalign(4096, size))
TAKES(7, pvalloc, (size_t size), 0, __libc_memalign(4096, (size + 4095) & ~(size_t)4095))
GIVES(16, free, (void *block), 0, 0)
GIVES(17, free_sized, (void *block, size_t size), size, 0)
GIVES(18, free_aligned_sized, (void *block, size_t align, size_t size), size, align)

/* C++'s operators, by the names that they have in object files. */
TAKES(8, _Znwm, (size_t size), 0, __libc_malloc(size))
TAKES(9, _ZnwmRKSt9nothrow_t, (size_t size, const void *tag), 0, __libc_malloc(size))
TAKES(10, _ZnwmSt11align_val_t, (size_t size, size_t align), align, __libc_memalign(align, size))
TAKES(11, _ZnwmSt11align_val_tRKSt9nothrow_t, (size_t size, size_t align, const void *tag), align,
      __libc_memalign(align, size))
GIVES(19, _ZdlPv, (void *block), 0, 0)
GIVES(20, _ZdlPvm, (void *block, size_t size), size, 0)
GIVES(21, _ZdlPvSt11align_val_t, (void *block, size_t align), 0, align)
GIVES(22, _ZdlPvmSt11align_val_t, (void *block, size_t size, size_t align), size, align)

void *calloc(size_t count, size_t size)
{
    return took(2, count * size, 0, __libc_calloc(count, size));
}

int posix_memalign(void **block, size_t align, size_t size)
{
    *block = took(5, size, align, __libc_memalign(align, size));
    return *block != NULL ? 0 : ENOMEM;
}

void *realloc(void *old, size_t size)
{
    const uint64_t before = (uint64_t)(uintptr_t)old;
    void *block = __libc_realloc(old, size);
    write_down(15, size, 0, block, before);
    return block;
}
