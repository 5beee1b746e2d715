/*
 * Requests from other processes: what hz and the agent share.
 *
 * A request is one packet: a line with the key, then lines that are the words of the request. The
 * answer is one packet, an object of JSON. `stats` and `trim` are the process's, `set` and `govern`
 * those of lease.h. Descriptor 1 of the thread hz-control is a memory file that is called NAME-KEY:
 * NAME is that of the socket in the abstract namespace, "hz-control-" and 16 digits, and KEY
 * has 32.
 */
#ifndef HZ_SERVE_H
#define HZ_SERVE_H

#include <stdbool.h>

#include "lease.h"
#include "text.h"

/* The version of what requests and answers mean. */
#define HZ_SERVE_PROTOCOL 3

/* Answers a request of one word, one request at a time; false: it does not understand the word. */
typedef bool hz_serve_answer(const char *word, hz_text *answer);
/* Says why requests are not answered, in a line with its end. */
typedef void hz_serve_say(const char *line);

#pragma GCC visibility push(hidden)

/* Starts the thread that answers; `set` and `govern` it answers by the levers. */
void hz_serve_start(hz_serve_answer *answer, const hz_levers *levers, hz_serve_say *say);
/* The beginning of every answer: an object that is still open. */
void hz_serve_begin(hz_text *answer, const char *allocator);
/* A whole answer that refuses. `kind` is a word for programs, the sentence is for people. */
void hz_serve_refuse(hz_text *answer, const char *kind, const char *sentence);

#pragma GCC visibility pop

#endif
