/*
 * Requests from outside the process, under HZ_CONTROL=1.
 */
#ifndef HZ_CONTROL_H
#define HZ_CONTROL_H

#pragma GCC visibility push(hidden)

void hz_control_start(void);

#pragma GCC visibility pop

#endif
