/*
 * The one instruction that calls the system.
 *
 * The words are read before the registers are set: under ThreadSanitizer each read is a call, which
 * changes registers.
 */
#include "os_call.h"

#include <errno.h>
#include <unistd.h>

long hz_os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    const long a = words[0], b = words[1], c = words[2], d = words[3], e = words[4], f = words[5];
#if defined(__x86_64__)
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    register long sixth __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return number;
#elif defined(__aarch64__)
    register long which __asm__("x8") = number;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = e;
    register long sixth __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(first)
                     : "r"(which), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "memory");
    return first;
#else
    const int saved = errno;
    const long result = syscall(number, a, b, c, d, e, f);
    const int error = errno;
    errno = saved;
    return result == -1 ? -error : result;
#endif
}
