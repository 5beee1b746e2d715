/*
 * A program that stands before the C library's syscall(): hz, which the program is linked with,
 * calls the one here. Include this in one file, which says in syscall_here what becomes of a call.
 */
#ifndef TEST_BEFORE_SYSCALL_H
#define TEST_BEFORE_SYSCALL_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <unistd.h>

enum { SYSCALL_WORDS = 6 };

/* The program's: answers a call, or passes it on with syscall_behind. */
static long syscall_here(long number, const long words[SYSCALL_WORDS]);

/* The C library's. */
static long syscall_behind(long number, const long words[SYSCALL_WORDS])
{
    typedef long form(long, ...);
    static form *behind;
    if (behind == NULL) behind = (form *)(uintptr_t)dlsym(RTLD_NEXT, "syscall");
    return behind(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

long syscall(long number, ...)
{
    long words[SYSCALL_WORDS];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < SYSCALL_WORDS; i++) words[i] = va_arg(rest, long);
    va_end(rest);
    return syscall_here(number, words);
}

#endif
