/*
 * Included before each source of hz in the model. All of its threads are of one thread of the
 * system, so that the address of a thread-local variable does not tell them apart: calls of
 * hz_lock_me() go to the engine, and the definition gets another name.
 */
#ifndef MODEL_STAND_IN_H
#define MODEL_STAND_IN_H

#include <stdint.h>

uintptr_t hz_lock_me_(void);
#define hz_lock_me(nothing) hz_lock_me_##nothing(nothing)

#endif
