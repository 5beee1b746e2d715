/*
 * Requests from other processes: what hz and the agent share.
 *
 * A request is one packet: a line with the key, then lines that are the words of the request. The
 * answer is one packet, an object of JSON. Descriptor 1 of the thread hz-control is a memory file
 * that is called NAME-KEY: NAME is that of the socket in the abstract namespace, "hz-control-" and
 * 16 digits, and KEY has 32.
 */
#ifndef HZ_SERVE_H
#define HZ_SERVE_H

#include <stdbool.h>

#include "text.h"

/* The version of what requests and answers mean. */
#define HZ_SERVE_PROTOCOL 2

/* Answers a request, which is terminated and may be changed. One request at a time. */
typedef void hz_serve_answer(char *request, hz_text *answer);
/* Says why requests are not answered, in a line with its end. */
typedef void hz_serve_say(const char *line);

#pragma GCC visibility push(hidden)

/* Starts the thread that answers. */
void hz_serve_start(hz_serve_answer *answer, hz_serve_say *say);
/* The beginning of every answer: an object that is still open. */
void hz_serve_begin(hz_text *answer, const char *allocator);
/* A whole answer that refuses. `kind` is a word for programs, the sentence is for people. */
void hz_serve_refuse(hz_text *answer, const char *kind, const char *sentence);

#pragma GCC visibility pop

#endif
