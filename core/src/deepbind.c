/*
 * RTLD_DEEPBIND, taken out of dlopen.
 *
 * A library that is loaded with this flag looks its symbols up in itself and in what it is linked
 * with, the C library included, before the program and what was preloaded. It then calls the C
 * library's malloc and free while the program calls the preloaded ones, and the first block that
 * one allocates and the other frees ends the program. PHP loads all its extensions that way. No
 * preloaded allocator can serve such a program, so the flag does not reach the C library, unless
 * HZ_KEEP_DEEPBIND=1 is set.
 *
 * This file is a part of libhz.so, and all of libhz-deepbind.so, which is for other preloaded
 * allocators. It allocates nothing and needs nothing of hz.
 *
 * dlopen searches RPATH and RUNPATH of the library that called it, which the C library knows by the
 * return address. So these functions jump to the C library's and leave the stack and the link
 * register as they found them. C guarantees no such jump without optimisation, hence the assembly.
 * If there is none for the processor, or the C library has no such flag (musl), this file defines
 * nothing: dlopen stays the C library's.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"

#pragma GCC visibility push(hidden)

/* A call's first three arguments. The assembly stores their registers on the stack, and loads them
 * again before it jumps to the C library. */
typedef struct hz_load {
    uint64_t arguments[3]; /* dlopen: file, mode; dlmopen: namespace, file, mode */
} hz_load;

_Static_assert(sizeof(hz_load) == 24, "the assembly makes it so");

/* Each may change the arguments, and returns the function to jump to. */
void *hz_deepbind_dlopen(hz_load *load);
void *hz_deepbind_dlmopen(hz_load *load);

#pragma GCC visibility pop

#if defined(RTLD_DEEPBIND) && defined(__x86_64__) && defined(__LP64__)

#define HZ_JUMP(name, change)                                                                      \
    __asm__(".pushsection .text\n"                                                                 \
            ".globl " #name "\n"                                                                   \
            ".type " #name ", @function\n"                                                         \
            ".balign 16\n" #name ":\n"                                                             \
            ".cfi_startproc\n"                                                                     \
            "endbr64\n"                                                                            \
            "subq $24, %rsp\n"                                                                     \
            ".cfi_adjust_cfa_offset 24\n"                                                          \
            "movq %rdi, (%rsp)\n"                                                                  \
            "movq %rsi, 8(%rsp)\n"                                                                 \
            "movq %rdx, 16(%rsp)\n"                                                                \
            "movq %rsp, %rdi\n"                                                                    \
            "call " #change "\n"                                                                   \
            "movq (%rsp), %rdi\n"                                                                  \
            "movq 8(%rsp), %rsi\n"                                                                 \
            "movq 16(%rsp), %rdx\n"                                                                \
            "addq $24, %rsp\n"                                                                     \
            ".cfi_adjust_cfa_offset -24\n"                                                         \
            "jmp *%rax\n"                                                                          \
            ".cfi_endproc\n"                                                                       \
            ".size " #name ", . - " #name "\n"                                                     \
            ".popsection\n")

#elif defined(RTLD_DEEPBIND) && defined(__aarch64__) && defined(__LP64__)

/* `hint #34` is bti c: the function may be called through a pointer. */
#define HZ_JUMP(name, change)                                                                      \
    __asm__(".pushsection .text\n"                                                                 \
            ".globl " #name "\n"                                                                   \
            ".type " #name ", %function\n"                                                         \
            ".balign 16\n" #name ":\n"                                                             \
            ".cfi_startproc\n"                                                                     \
            "hint #34\n"                                                                           \
            "stp x29, x30, [sp, #-48]!\n"                                                          \
            ".cfi_adjust_cfa_offset 48\n"                                                          \
            ".cfi_rel_offset x29, 0\n"                                                             \
            ".cfi_rel_offset x30, 8\n"                                                             \
            "mov x29, sp\n"                                                                        \
            "stp x0, x1, [sp, #16]\n"                                                              \
            "str x2, [sp, #32]\n"                                                                  \
            "add x0, sp, #16\n"                                                                    \
            "bl " #change "\n"                                                                     \
            "mov x16, x0\n"                                                                        \
            "ldp x0, x1, [sp, #16]\n"                                                              \
            "ldr x2, [sp, #32]\n"                                                                  \
            "ldp x29, x30, [sp], #48\n"                                                            \
            ".cfi_adjust_cfa_offset -48\n"                                                         \
            ".cfi_restore x29\n"                                                                   \
            ".cfi_restore x30\n"                                                                   \
            "br x16\n"                                                                             \
            ".cfi_endproc\n"                                                                       \
            ".size " #name ", . - " #name "\n"                                                     \
            ".popsection\n")

#endif

#ifdef HZ_JUMP

HZ_JUMP(dlopen, hz_deepbind_dlopen);
HZ_JUMP(dlmopen, hz_deepbind_dlmopen);

/* Takes the call when no library behind this one has the function. */
static void *load_nothing(void)
{
    return NULL;
}

/* The function of that name behind this library's own. Looked up at the first call and not before:
 * another library's constructor may load a library before this one's constructors run. Threads that
 * look at the same time find the same. */
static void *behind(_Atomic(void *) *known, const char *name)
{
    void *found = hz_atomic_get(known);
    if (found != NULL) return found;
    found = dlsym(RTLD_NEXT, name);
    if (found == NULL) return (void *)(uintptr_t)load_nothing;
    hz_atomic_put(known, found);
    return found;
}

/* Whether the user wants the flag to reach the C library. In a set-uid process the environment may
 * be an attacker's, and reads as empty. */
static bool is_flag_kept(void)
{
    enum { UNREAD, TAKEN_OUT, KEPT };
    static _Atomic uint32_t answer;
    if (hz_atomic_peek(&answer) == UNREAD) {
        const char *value = secure_getenv("HZ_KEEP_DEEPBIND");
        hz_atomic_poke(&answer, value != NULL && strcmp(value, "1") == 0 ? KEPT : TAKEN_OUT);
    }
    return hz_atomic_peek(&answer) == KEPT;
}

/* The environment counts as it is when the process starts, as for hz's other variables. */
__attribute__((constructor)) static void read_flag(void)
{
    (void)is_flag_kept();
}

static uint64_t without_deepbind(uint64_t mode)
{
    if ((mode & RTLD_DEEPBIND) == 0 || is_flag_kept()) return mode;
    return mode & ~(uint64_t)RTLD_DEEPBIND;
}

void *hz_deepbind_dlopen(hz_load *load)
{
    static _Atomic(void *) known;
    load->arguments[1] = without_deepbind(load->arguments[1]);
    return behind(&known, "dlopen");
}

/* Another namespace has a C library of its own, and nothing that was preloaded: the flag does no
 * harm there. */
void *hz_deepbind_dlmopen(hz_load *load)
{
    static _Atomic(void *) known;
    if ((Lmid_t)load->arguments[0] == LM_ID_BASE)
        load->arguments[2] = without_deepbind(load->arguments[2]);
    return behind(&known, "dlmopen");
}

#endif
