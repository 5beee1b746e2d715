// Counts words of a text that it makes up, in a table of C: each string crosses over as a copy that
// malloc makes. Argument: rounds.
package main

/*
#include <stdlib.h>
#include <string.h>

struct entry {
	struct entry *next;
	char *word;
	long count;
};

static struct entry *table[4096];
static long entries;

static void count(const char *word)
{
	unsigned long hash = 5381;
	for (const char *at = word; *at; at++)
		hash = hash * 33 + (unsigned char)*at;
	struct entry **place = &table[hash % 4096];
	while (*place && strcmp((*place)->word, word))
		place = &(*place)->next;
	if (!*place) {
		*place = calloc(1, sizeof **place);
		(*place)->word = strdup(word);
		entries++;
	}
	(*place)->count++;
}

static void forget(void)
{
	for (int slot = 0; slot < 4096; slot++)
		for (struct entry **place = &table[slot]; *place;) {
			struct entry *found = *place;
			if (found->count <= 40) {
				place = &found->next;
				continue;
			}
			*place = found->next;
			free(found->word);
			free(found);
			entries--;
		}
}

static long size(void)
{
	return entries;
}

static long sum(void)
{
	long total = 0;
	for (int slot = 0; slot < 4096; slot++)
		for (struct entry *found = table[slot]; found; found = found->next)
			total += found->count;
	return total;
}
*/
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

func main() {
	rounds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	state := 1
	for round := 0; round < rounds; round++ {
		for i := 0; i < 200; i++ {
			state = (state*1103515245 + 12345) % 2147483648
			word := C.CString(strings.Repeat("WORD"+strconv.Itoa(state%5000), 1+state%3))
			C.count(word)
			C.free(unsafe.Pointer(word))
		}
		if C.size() > 4000 {
			C.forget()
		}
	}
	fmt.Println(C.size(), C.sum())
}
