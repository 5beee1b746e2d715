/*
 * C++'s operators new and delete. Their forms that do not throw are in override_nothrow.c.
 */
#include <hz/hz.h>

#include <errno.h>
#include <stdlib.h>

#include "override.h"
#include "pop.h"

/* As the standard says: call the new handler until an allocation succeeds; without one, throw. */
static void *new_slow(size_t align, size_t size)
{
    for (;;) {
        void *block = hz_aligned_alloc(align, size);
        if (block != NULL) return block;
        hz_new_handler handler = hz_new_handler_now();
        if (handler == NULL || errno == EINVAL) break;
        handler();
    }
    hz_throw_bad_alloc();
    abort();
}

/* Whatever a pop did not get. Apart, as it needs a frame and the pop does not. */
__attribute__((noinline)) static void *new_any(size_t size)
{
    void *block = hz_malloc(size);
    return HZ_LIKELY(block != NULL) ? block : new_slow(1, size);
}

DROP_IN void *_Znwm(size_t size) /* operator new(size_t) */
{
    void *block = hz_pop_small(size);
    return HZ_LIKELY(block != NULL) ? block : new_any(size);
}

DROP_IN void *_ZnwmSt11align_val_t(size_t size,
                                   size_t align) /* operator new(size_t, align_val_t) */
{
    return new_slow(align, size);
}

void *_Znam(size_t size) SAME_AS(_Znwm);
void *_ZnamSt11align_val_t(size_t size, size_t align) SAME_AS(_ZnwmSt11align_val_t);

/* Of operator delete's further arguments only the size is checked, and only under hardening. */
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
