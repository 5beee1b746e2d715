/*
 * The clock, as the kernel's vDSO tells it: code that the kernel maps into each process, so that
 * most reads are no system call. It is looked up here and not by the C library, whose clock_gettime
 * may be another library's (os_call.h), and of which a false time would be no time for hz.
 */
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>

#include "atomic.h"
#include "os.h"
#include "os_call.h"

#ifdef __aarch64__
#define NAME "__kernel_clock_gettime"
#else
#define NAME "__vdso_clock_gettime"
#endif

typedef int clock_form(clockid_t clock, struct timespec *now);
static clock_form *_Atomic in_vdso; /* NULL: it has none, or was not found yet */

/* The symbols end where their names begin. */
static clock_form *clock_among(const ElfW(Sym) * symbol, const char *names, const char *base)
{
    for (; (const char *)(symbol + 1) <= names; symbol++) {
        if (symbol->st_shndx == SHN_UNDEF || strcmp(names + symbol->st_name, NAME) != 0) continue;
        return (clock_form *)(uintptr_t)(base + symbol->st_value);
    }
    return NULL;
}

void hz_os_clock_find(void)
{
    const char *image = (const void *)getauxval(AT_SYSINFO_EHDR), *base = image;
    const ElfW(Ehdr) *head = (const void *)image;
    const ElfW(Dyn) *entry = NULL;
    if (image == NULL) return;
    const ElfW(Phdr) *parts = (const void *)(image + head->e_phoff);
    for (size_t i = 0; i < head->e_phnum; i++) {
        if (parts[i].p_type == PT_LOAD) base = image + parts[i].p_offset - parts[i].p_vaddr;
        if (parts[i].p_type == PT_DYNAMIC) entry = (const void *)(image + parts[i].p_offset);
    }
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (const void *)(base + entry->d_un.d_ptr);
        if (entry->d_tag == DT_STRTAB) names = base + entry->d_un.d_ptr;
    }
    if (symbols != NULL && names != NULL)
        hz_atomic_put(&in_vdso, clock_among(symbols, names, base));
}

/* Since some moment before the process began. */
static uint64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_form *const form = hz_atomic_get(&in_vdso);
    if (form == NULL || form(clock, &now) != 0)
        (void)HZ_OS_CALL(SYS_clock_gettime, clock, (long)&now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint32_t hz_os_now_ms(void)
{
    return (uint32_t)(now_ns(CLOCK_MONOTONIC_COARSE) / 1000000);
}

uint64_t hz_os_now_ns(void)
{
    return now_ns(CLOCK_MONOTONIC);
}
