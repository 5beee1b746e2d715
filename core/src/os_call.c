/*
 * The one instruction that calls the system.
 */
#include "os_call.h"

#include <errno.h>
#include <unistd.h>

long hz_os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
#if defined(__x86_64__)
    register long fourth __asm__("r10") = words[3];
    register long fifth __asm__("r8") = words[4];
    register long sixth __asm__("r9") = words[5];
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(words[0]), "S"(words[1]), "d"(words[2]), "r"(fourth), "r"(fifth),
                       "r"(sixth)
                     : "rcx", "r11", "memory");
    return number;
#elif defined(__aarch64__)
    register long which __asm__("x8") = number;
    register long first __asm__("x0") = words[0];
    register long second __asm__("x1") = words[1];
    register long third __asm__("x2") = words[2];
    register long fourth __asm__("x3") = words[3];
    register long fifth __asm__("x4") = words[4];
    register long sixth __asm__("x5") = words[5];
    __asm__ volatile("svc #0"
                     : "+r"(first)
                     : "r"(which), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "memory");
    return first;
#else
    const int saved = errno;
    const long result = syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    const int error = errno;
    errno = saved;
    return result == -1 ? -error : result;
#endif
}
