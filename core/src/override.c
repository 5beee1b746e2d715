/*
 * malloc, free and their kin, and C++'s operators new and delete: what makes libhz.so a drop-in.
 * Compiled into the shared library only; everything here is a thin name for a function of hz.h.
 */
#include <hz/hz.h>

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each of these is a definition of a name that is declared elsewhere, or, for C++, nowhere in C. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"

#define DROP_IN __attribute__((visibility("default"), used))
#if defined(__has_attribute) && __has_attribute(copy)
#define SAME_AS(name) __attribute__((visibility("default"), used, alias(#name), copy(name)))
#else
#define SAME_AS(name) __attribute__((visibility("default"), used, alias(#name)))
#endif

static size_t system_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- C -------------------------------------------------------------------------------------- */

DROP_IN void *memalign(size_t align, size_t size)
{
    return hz_memalign(align, size);
}

DROP_IN void *aligned_alloc(size_t align, size_t size)
{
    return hz_aligned_alloc(align, size);
}

DROP_IN int posix_memalign(void **block, size_t align, size_t size)
{
    return hz_posix_memalign(block, align, size);
}

DROP_IN void *valloc(size_t size)
{
    return hz_memalign(system_page_bytes(), size);
}

DROP_IN void *pvalloc(size_t size)
{
    size_t page = system_page_bytes();
    if (size > SIZE_MAX - page) {
        errno = ENOMEM;
        return NULL;
    }
    return hz_memalign(page, (size + page - 1) & ~(page - 1));
}

DROP_IN void *reallocarray(void *block, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return hz_realloc(block, bytes);
}

DROP_IN size_t malloc_usable_size(void *block)
{
    return hz_usable_size(block);
}

DROP_IN void free_sized(void *block, size_t size)
{
    hz_free_sized(block, size);
}

DROP_IN void free_aligned_sized(void *block, size_t align, size_t size)
{
    (void)align;
    hz_free_sized(block, size);
}

void *__libc_memalign(size_t align, size_t size) SAME_AS(memalign);
void *__libc_valloc(size_t size) SAME_AS(valloc);
void *__libc_pvalloc(size_t size) SAME_AS(pvalloc);

/* ---- glibc's own extensions ----------------------------------------------------------------- */

DROP_IN int malloc_trim(size_t pad)
{
    (void)pad;
    return hz_trim();
}

/* hz has parameters of its own: nothing of mallopt's applies, and 0 says so. */
DROP_IN int mallopt(int parameter, int value)
{
    (void)parameter;
    (void)value;
    return 0;
}

DROP_IN struct mallinfo2 mallinfo2(void)
{
    struct mallinfo2 info;
    hz_usage usage = hz_usage_now();
    memset(&info, 0, sizeof info);
    info.arena = usage.committed_bytes;
    info.fordblks = usage.free_bytes;
    info.keepcost = usage.free_bytes;
    info.uordblks = usage.committed_bytes - usage.free_bytes;
    return info;
}

static int clamp_to_int(size_t value)
{
    return value > 0x7fffffff ? 0x7fffffff : (int)value;
}

DROP_IN struct mallinfo mallinfo(void)
{
    struct mallinfo info;
    struct mallinfo2 wide = mallinfo2();
    memset(&info, 0, sizeof info);
    info.arena = clamp_to_int(wide.arena);
    info.fordblks = clamp_to_int(wide.fordblks);
    info.keepcost = clamp_to_int(wide.keepcost);
    info.uordblks = clamp_to_int(wide.uordblks);
    return info;
}

DROP_IN int malloc_info(int options, FILE *stream)
{
    char json[8192];
    if (options != 0) {
        errno = EINVAL;
        return -1;
    }
    hz_stats_json(json, sizeof json);
    return fprintf(stream, "<malloc version=\"hz-1\"><![CDATA[%s]]></malloc>\n", json) < 0 ? -1 : 0;
}

DROP_IN void malloc_stats(void)
{
    char json[8192];
    hz_stats_json(json, sizeof json);
    fprintf(stderr, "%s\n", json);
}

/* ---- C++ ------------------------------------------------------------------------------------ */

/* Of libstdc++ or libc++, when the program has one. */
typedef void (*new_handler)(void);
__attribute__((weak)) new_handler _ZSt15get_new_handlerv(void);
__attribute__((weak)) void _ZSt17__throw_bad_allocv(void);

static new_handler handler_now(void)
{
    return _ZSt15get_new_handlerv != NULL ? _ZSt15get_new_handlerv() : NULL;
}

/* As the standard says: call the new handler until memory turns up; without one, throw. */
static void *new_slow(size_t align, size_t size)
{
    for (;;) {
        void *block = hz_aligned_alloc(align, size);
        if (block != NULL) return block;
        new_handler handler = handler_now();
        if (handler == NULL) break;
        handler();
    }
    if (_ZSt17__throw_bad_allocv != NULL) _ZSt17__throw_bad_allocv();
    abort();
}

/*
 * The same, with NULL in place of every exception. A handler may throw, and C cannot catch: so
 * where there is one, the C++ library's own form is called, which calls the throwing form above and
 * catches.
 */
static void *new_slow_nothrow(const char *form, size_t align, size_t size, const void *tag)
{
    void *block = hz_aligned_alloc(align, size);
    if (block != NULL || handler_now() == NULL) return block;
    void *catching = dlsym(RTLD_NEXT, form);
    if (catching == NULL) return NULL;
    if (align > 1) return ((void *(*)(size_t, size_t, const void *))catching)(size, align, tag);
    return ((void *(*)(size_t, const void *))catching)(size, tag);
}

DROP_IN void *_Znwm(size_t size) /* operator new(size_t) */
{
    void *block = hz_malloc(size);
    return __builtin_expect(block != NULL, 1) ? block : new_slow(1, size);
}

DROP_IN void *_ZnwmRKSt9nothrow_t(size_t size, const void *tag) /* operator new(size_t, nothrow) */
{
    void *block = hz_malloc(size);
    if (__builtin_expect(block != NULL, 1)) return block;
    return new_slow_nothrow("_ZnwmRKSt9nothrow_t", 1, size, tag);
}

DROP_IN void *_ZnwmSt11align_val_t(size_t size,
                                   size_t align) /* operator new(size_t, align_val_t) */
{
    return new_slow(align, size);
}

DROP_IN void *_ZnwmSt11align_val_tRKSt9nothrow_t(size_t size, size_t align, const void *tag)
{
    return new_slow_nothrow("_ZnwmSt11align_val_tRKSt9nothrow_t", align, size, tag);
}

void *_Znam(size_t size) SAME_AS(_Znwm);
void *_ZnamRKSt9nothrow_t(size_t size, const void *tag) SAME_AS(_ZnwmRKSt9nothrow_t);
void *_ZnamSt11align_val_t(size_t size, size_t align) SAME_AS(_ZnwmSt11align_val_t);
void *_ZnamSt11align_val_tRKSt9nothrow_t(size_t size, size_t align, const void *tag)
    SAME_AS(_ZnwmSt11align_val_tRKSt9nothrow_t);

/* Of operator delete's further arguments only the size is looked at, and only under hardening. */
DROP_IN void _ZdlPv(void *block)
{
    hz_free(block);
}

void _ZdaPv(void *) SAME_AS(_ZdlPv);
void _ZdlPvRKSt9nothrow_t(void *) SAME_AS(_ZdlPv);
void _ZdaPvRKSt9nothrow_t(void *) SAME_AS(_ZdlPv);
void _ZdlPvSt11align_val_t(void *) SAME_AS(_ZdlPv);
void _ZdaPvSt11align_val_t(void *) SAME_AS(_ZdlPv);
void _ZdlPvSt11align_val_tRKSt9nothrow_t(void *) SAME_AS(_ZdlPv);
void _ZdaPvSt11align_val_tRKSt9nothrow_t(void *) SAME_AS(_ZdlPv);

DROP_IN void _ZdlPvm(void *block, size_t size)
{
    hz_free_sized(block, size);
}

void _ZdaPvm(void *, size_t) SAME_AS(_ZdlPvm);
void _ZdlPvmSt11align_val_t(void *, size_t) SAME_AS(_ZdlPvm);
void _ZdaPvmSt11align_val_t(void *, size_t) SAME_AS(_ZdlPvm);
