/*
 * Preloaded, it stands before the functions of the C library that hz calls (wrapped.def has a row
 * for each), and allocates and frees whenever hz or the program calls one; also where that makes hz
 * call another one. So each of them is once the only one that allocates before hz has started.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>

static const struct {
    const char *name, *version;
} functions[] = {
#define WRAPPED(number, name, version) {#name, version},
#include "wrapped.def"
#undef WRAPPED
};

static void *behind[sizeof functions / sizeof *functions];
static _Thread_local bool is_under[sizeof functions / sizeof *functions]
    __attribute__((tls_model("initial-exec")));

static void allocate_and_free(void)
{
    static const size_t sizes[] = {24, 5000, 100000, 1 << 20};
    void *blocks[sizeof sizes / sizeof *sizes];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) blocks[i] = malloc(sizes[i]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) free(blocks[i]);
}

__attribute__((visibility("hidden"))) void *wrapped_behind(size_t number)
{
    const bool was_under = is_under[number];
    is_under[number] = true;
    if (!was_under) allocate_and_free();
    if (behind[number] == NULL)
        behind[number] = dlvsym(RTLD_NEXT, functions[number].name, functions[number].version);
    is_under[number] = was_under;
    return behind[number];
}

/* Keeps the arguments, of which there may be any number, and goes on with the function behind. */
__asm__(".text\n"
        "wrapped_any:\n"
        "push %rax\n push %rdi\n push %rsi\n push %rdx\n push %rcx\n push %r8\n push %r9\n"
        "sub $136, %rsp\n"
        "movdqu %xmm0, (%rsp)\n movdqu %xmm1, 16(%rsp)\n movdqu %xmm2, 32(%rsp)\n"
        "movdqu %xmm3, 48(%rsp)\n movdqu %xmm4, 64(%rsp)\n movdqu %xmm5, 80(%rsp)\n"
        "movdqu %xmm6, 96(%rsp)\n movdqu %xmm7, 112(%rsp)\n"
        "mov 192(%rsp), %rdi\n"
        "call wrapped_behind\n"
        "mov %rax, %r11\n"
        "movdqu (%rsp), %xmm0\n movdqu 16(%rsp), %xmm1\n movdqu 32(%rsp), %xmm2\n"
        "movdqu 48(%rsp), %xmm3\n movdqu 64(%rsp), %xmm4\n movdqu 80(%rsp), %xmm5\n"
        "movdqu 96(%rsp), %xmm6\n movdqu 112(%rsp), %xmm7\n"
        "add $136, %rsp\n"
        "pop %r9\n pop %r8\n pop %rcx\n pop %rdx\n pop %rsi\n pop %rdi\n pop %rax\n"
        "add $8, %rsp\n"
        "jmp *%r11\n");

#define WRAPPED(number, name, version)                                                             \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ":\n"                           \
            "push $" #number "\n jmp wrapped_any\n");
#include "wrapped.def"
