/*
 * C++'s forms of operator new that give NULL in place of an exception. In the shared library only:
 * in a static program the C++ library's own forms call hz's throwing ones.
 */
#include <hz/hz.h>

#include <dlfcn.h>
#include <stddef.h>

#include "override.h"

/*
 * operator new with NULL in place of every exception. A new handler may throw, and C cannot catch:
 * so if there is one, the C++ library's own form is called, which calls hz's throwing form and
 * catches. `align`: 0 for the form without one.
 */
static void *new_slow_nothrow(const char *form, size_t align, size_t size, const void *tag)
{
    void *block = align > 0 ? hz_aligned_alloc(align, size) : hz_malloc(size);
    if (block != NULL || hz_new_handler_now() == NULL) return block;
    void *catching = dlsym(RTLD_NEXT, form);
    if (catching == NULL) return NULL;
    if (align > 0) return ((void *(*)(size_t, size_t, const void *))catching)(size, align, tag);
    return ((void *(*)(size_t, const void *))catching)(size, tag);
}

DROP_IN void *_ZnwmRKSt9nothrow_t(size_t size, const void *tag) /* operator new(size_t, nothrow) */
{
    void *block = hz_malloc(size);
    if (__builtin_expect(block != NULL, 1)) return block;
    return new_slow_nothrow("_ZnwmRKSt9nothrow_t", 0, size, tag);
}

DROP_IN void *_ZnwmSt11align_val_tRKSt9nothrow_t(size_t size, size_t align, const void *tag)
{
    return new_slow_nothrow("_ZnwmSt11align_val_tRKSt9nothrow_t", align, size, tag);
}

void *_ZnamRKSt9nothrow_t(size_t size, const void *tag) SAME_AS(_ZnwmRKSt9nothrow_t);
void *_ZnamSt11align_val_tRKSt9nothrow_t(size_t size, size_t align, const void *tag)
    SAME_AS(_ZnwmSt11align_val_tRKSt9nothrow_t);
