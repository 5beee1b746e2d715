/*
 * A network of one's own: its ports are free, and it reaches nothing but itself, by loopback.
 *
 * Root makes one as it is; another user makes a user namespace for it, in which it stays the user
 * that it is. A network ends with its last process.
 */
#ifndef HZ_BENCH_NETWORK_H
#define HZ_BENCH_NETWORK_H

#include <stdbool.h>
#include <sys/types.h>

/* Gives this process, and what it starts, a network; false, with errno, where it may not. */
bool hz_network_own(void);

/* Takes this process, and what it starts, into the network of another one; false as above. */
bool hz_network_join(pid_t other);

#endif
