/*
 * Becoming a program whose life is tied to its parent's.
 */
#ifndef HZ_BENCH_TIE_H
#define HZ_BENCH_TIE_H

/*
 * Ties this process to its parent: it is killed when the parent ends, leaves no core file, and is
 * what the kernel ends first, by `oom_score_adj`, when memory runs out. Ends it at once when
 * `parent` is its parent no more.
 */
void hz_tie_to(int parent, const char *oom_score_adj);

/*
 * `hz-launch --tie PARENT ENVIRONMENT REPORT PROGRAM ARGUMENTS...`: ties this process to PARENT and
 * executes PROGRAM in its place.
 *
 * For a parent with several threads, which may run nothing between fork and exec. ENVIRONMENT is a
 * descriptor from which PROGRAM's variables are read ("NAME=VALUE", each with a zero byte behind
 * it): they are not this process's own, so that a library of LD_PRELOAD is loaded once, and by
 * PROGRAM. When PROGRAM cannot be executed, the errno is written to the descriptor REPORT, as an
 * int.
 */
_Noreturn void hz_tie(int argc, char **argv);

#endif
