/*
 * The engine of the model: hz's accesses, as -fsanitize=thread reports them, become accesses of
 * Relacy's machine, which chooses the thread that runs next and which value a load sees, and knows
 * what happens before what.
 *
 *   atomic access    a point where the threads may switch; the value is Relacy's choice
 *   plain access     no switch, but a data race with an access that is not ordered fails the run
 *   futex            a thread that no other one wakes fails the run (a deadlock)
 *   fork             a checkpoint: the child runs alone on the newest values, then all is undone
 *
 * Memory holds the newest value of everything. What a run changes is logged and undone before the
 * next one, so that every run begins alike. Relacy knows a byte range by its first address only:
 * accesses of different sizes at one address are seen, overlapping ones at different addresses are
 * not.
 *
 *   model CASE --search random|bound --runs N [--bound N]     exit status 0: nothing found
 *   model --list
 */
#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <stack>
#include <vector>
#include <queue>
#include <fstream>
#include <stdexcept>

#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define private public
#define protected public
#include <relacy/relacy.hpp>
#undef private
#undef protected
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno
#undef sched_yield
#undef pthread_create
#undef pthread_t

#include "model.h"

namespace
{

/* ---- memory of the machine ------------------------------------------------------------------- */

char *const region = reinterpret_cast<char *>(UINT64_C(0x600000000000));
const size_t region_bytes = size_t(256) << 20;
size_t region_used;

extern "C" char __data_start, _end;

enum { THREADS_MAX = 3, TLS_BYTES_MAX = 256, KEYS_MAX = 4, FORK_HANDLERS_MAX = 4 };
char *tls_start;
size_t tls_bytes;
char tls_fresh[TLS_BYTES_MAX];              /* of a thread that has done nothing */
char tls_image[THREADS_MAX][TLS_BYTES_MAX]; /* of each thread, while it is not running */
void *key_value[THREADS_MAX][KEYS_MAX];     /* thread-specific data */
void (*key_destructor[KEYS_MAX])(void *);
unsigned key_count;
struct fork_handlers {
    void (*prepare)(), (*parent)(), (*child)();
};
fork_handlers forks[FORK_HANDLERS_MAX];
unsigned fork_count;

bool is_running;   /* a run is on: changes are logged */
bool is_direct;    /* nothing runs beside: accesses go straight to memory */
unsigned current;  /* thread that the thread-local variables are of */
unsigned spinning; /* pauses since this thread last let others run */
const model_case *the_case;

/* Where hz may find memory: mapped when it is first claimed, and never unmapped. */
struct range {
    char *start, *end;
};
enum { RANGES_MAX = 64 };
range ranges[RANGES_MAX];
unsigned range_count;

bool is_in(const range &r, const char *at)
{
    return at >= r.start && at < r.end;
}

bool is_watched(const void *address)
{
    const char *at = static_cast<const char *>(address);
    if (at >= tls_start && at < tls_start + tls_bytes) return false;
    if (at >= &__data_start && at < &_end) return true;
    for (unsigned i = 0; i < range_count; i++)
        if (is_in(ranges[i], at)) return true;
    return false;
}

/* Maps what is not mapped yet; a claim of the run before may have mapped a part. */
bool range_add(char *start, size_t bytes)
{
    for (unsigned i = 0; i < range_count && bytes > 0; i++) {
        if (!is_in(ranges[i], start)) continue;
        const size_t known = size_t(ranges[i].end - start) < bytes ? ranges[i].end - start : bytes;
        start += known;
        bytes -= known;
        i = unsigned(-1);
    }
    if (bytes == 0) return true;
    void *got = mmap(start, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != start || range_count == RANGES_MAX) return false;
    for (unsigned i = 0; i < range_count; i++) {
        if (ranges[i].end != start) continue;
        ranges[i].end += bytes;
        return true;
    }
    const range added = {start, start + bytes};
    ranges[range_count++] = added;
    return true;
}

/* ---- what a run changes ---------------------------------------------------------------------- */

struct change {
    char *at;
    uint64_t old;
    size_t bytes;
};
const size_t changes_max = size_t(1) << 22;
change *changes;
size_t change_count;

void log_change(void *address, size_t bytes)
{
    if (!is_running || !is_watched(address)) return;
    char *at = static_cast<char *>(address);
    while (bytes > 0) {
        const size_t part = bytes < 8 ? bytes : 8;
        if (change_count == changes_max) abort();
        change &entry = changes[change_count++];
        entry.at = at;
        entry.bytes = part;
        memcpy(&entry.old, at, part);
        at += part;
        bytes -= part;
    }
}

void undo_to(size_t mark)
{
    while (change_count > mark) {
        const change &entry = changes[--change_count];
        memcpy(entry.at, &entry.old, entry.bytes);
    }
}

/* ---- cells: what Relacy knows of an address -------------------------------------------------- */

struct cell {
    uintptr_t address;
    uint64_t run;                              /* the run that it was made in */
    rl::atomic_data *data;                     /* NULL: no atomic access yet */
    rl::var_data *plain;                       /* NULL: no plain access yet */
    rl::var_data *seen;                        /* the same of atomic ones: to find mixed races */
    uint64_t newest;                           /* value of the last atomic store */
    uint64_t history[rl::atomic_history_size]; /* values that a load may see */
};
const size_t cells_max = size_t(1) << 18;
cell *cells;
cell **used;
size_t used_count;
uint64_t run_number;

cell &cell_of(const void *address)
{
    const uintptr_t key = reinterpret_cast<uintptr_t>(address);
    size_t at = (key >> 2) * UINT64_C(0x9e3779b97f4a7c15) >> 46;
    for (;; at = (at + 1) & (cells_max - 1)) {
        cell &found = cells[at];
        if (found.run == run_number && found.address == key) return found;
        if (found.run == run_number) continue;
        found.address = key;
        found.run = run_number;
        found.data = NULL;
        found.plain = found.seen = NULL;
        if (used_count == cells_max / 2) abort();
        used[used_count++] = &found;
        return found;
    }
}

void cells_forget()
{
    rl::context &c = rl::ctx();
    for (size_t i = 0; i < used_count; i++) {
        if (used[i]->data != NULL) c.atomic_dtor(used[i]->data);
        if (used[i]->plain != NULL) c.var_dtor(used[i]->plain);
        if (used[i]->seen != NULL) c.var_dtor(used[i]->seen);
    }
    used_count = 0;
}

/* What depends on the number of threads that Relacy was told of. */
struct kind {
    void (*make_old)(rl::atomic_data *data); /* no thread is known to have seen the first value */
    void (*sleep)(rl::atomic_data *data);
    void (*wake)(rl::atomic_data *data);
    void (*note)(rl::var_data *data, bool writes);       /* an access by this thread */
    bool (*is_after)(rl::var_data *data, bool of_reads); /* this thread is ordered after all */
};
const kind *the_kind;

template <int N> struct kind_of {
    static rl::atomic_data_impl<N> *of(rl::atomic_data *data)
    {
        return static_cast<rl::atomic_data_impl<N> *>(data);
    }
    static void make_old(rl::atomic_data *data)
    {
        for (size_t i = 0; i < rl::atomic_history_size; i++)
            for (int t = 0; t < N; t++)
                of(data)->history_[i].first_seen_order_[t] = rl::timestamp_t(-1);
    }
    /* Orders nothing: neither does a futex by the rules of C. */
    static void sleep(rl::atomic_data *data)
    {
        rl::context &c = rl::ctx();
        of(data)->futex_ws_.park_current(c, false, false, false, RL_INFO);
    }
    static void wake(rl::atomic_data *data)
    {
        rl::context &c = rl::ctx();
        of(data)->futex_ws_.unpark_one(c, RL_INFO);
    }
    static void note(rl::var_data *data, bool writes)
    {
        rl::var_data_impl<N> *var = static_cast<rl::var_data_impl<N> *>(data);
        rl::thread_info_base &thread = *rl::ctx().threadx_;
        (writes ? var->store_acq_rel_timestamp_ : var->load_acq_rel_timestamp_)[thread.index_] =
            ++thread.own_acq_rel_order_;
    }
    static bool is_after(rl::var_data *data, bool of_reads)
    {
        rl::var_data_impl<N> *var = static_cast<rl::var_data_impl<N> *>(data);
        const rl::timestamp_t *known = rl::ctx().threadx_->acq_rel_order_;
        for (int t = 0; t < N; t++) {
            if (known[t] < var->store_acq_rel_timestamp_[t]) return false;
            if (of_reads && known[t] < var->load_acq_rel_timestamp_[t]) return false;
        }
        return true;
    }
    static const kind it;
};
template <int N> const kind kind_of<N>::it = {make_old, sleep, wake, note, is_after};

/* ---- what is told of a run that failed ------------------------------------------------------- */

const char *const order_names[] = {"relaxed", "consume", "acquire",
                                   "release", "acq_rel", "seq_cst"};

struct access_event {
    const char *what;
    const void *address, *caller;
    uint64_t value;
    int order; /* -1: plain */
    void output(std::ostream &s) const
    {
        s << what << " " << address << " value=" << std::hex << value << std::dec << " "
          << (order < 0 ? "plain" : order_names[order]) << " by code at " << caller;
    }
};

void tell(const char *what, const void *address, uint64_t value, int order, const void *caller)
{
    rl::context &c = rl::ctx();
    if (!c.collecting_history()) return;
    access_event event = {what, address, caller, value, order};
    c.exec_log(rl::debug_info("", "", 0), event);
}

void fail(const char *why, rl::test_result_e result)
{
    if (!rl::is_ctx()) {
        fprintf(stderr, "model: %s\n", why);
        exit(3);
    }
    rl::ctx().fail_test(why, result, rl::debug_info("", "", 0));
}

/* ---- switching ------------------------------------------------------------------------------- */

/* Other threads may run inside `act`: thread-local variables are put back afterwards. */
template <typename Act> void switching(const Act &act)
{
    char mine[TLS_BYTES_MAX];
    const unsigned me = current, pauses = spinning;
    memcpy(mine, tls_start, tls_bytes);
    act();
    memcpy(tls_start, mine, tls_bytes);
    current = me;
    spinning = pauses;
}

void may_switch()
{
    if (spinning > 0) return;
    switching([] { rl::ctx().sched(); });
}

/* ---- atomic accesses ------------------------------------------------------------------------- */

rl::atomic_data *data_of(cell &at, uint64_t first)
{
    if (at.data != NULL) return at.data;
    at.data = rl::ctx().atomic_ctor(NULL);
    the_kind->make_old(at.data);
    const unsigned index = rl::ctx().threadx_->atomic_init(at.data);
    at.newest = first;
    at.history[index] = first;
    return at.data;
}

/* An atomic access races with plain ones as a plain one would. */
void note_atomic(cell &at, bool writes)
{
    if (at.plain != NULL && !the_kind->is_after(at.plain, writes))
        fail("atomic access beside a plain one", rl::test_result_data_race);
    if (at.seen == NULL) at.seen = rl::ctx().var_ctor();
    the_kind->note(at.seen, writes);
}

template <typename T> bool goes_straight(const T *object)
{
    return is_direct || !is_running || !is_watched(object);
}

/* Other threads may run first. */
template <typename T> cell &reach(T *object)
{
    may_switch();
    cell &at = cell_of(object);
    data_of(at, *object);
    return at;
}

template <typename T>
void written(cell &at, T *object, T value, unsigned index, const char *what, int order,
             const void *caller)
{
    at.history[index] = at.newest = value;
    log_change(object, sizeof *object); /* others may have stored since */
    *object = value;
    tell(what, object, value, order, caller);
    note_atomic(at, true);
}

template <typename T>
T atomic_load(const volatile T *volatile_object, int order, const void *caller)
{
    T *object = const_cast<T *>(volatile_object);
    if (goes_straight(object)) return *object;
    cell &at = reach(object);
    rl::thread_info_base &thread = *rl::ctx().threadx_;
    const unsigned index = order == __ATOMIC_RELAXED   ? thread.atomic_load_relaxed(at.data)
                           : order == __ATOMIC_SEQ_CST ? thread.atomic_load_seq_cst(at.data)
                                                       : thread.atomic_load_acquire(at.data);
    const T value = T(at.history[index]);
    tell("load", object, value, order, caller);
    note_atomic(at, false);
    return value;
}

template <typename T>
void atomic_store(volatile T *volatile_object, T value, int order, const void *caller)
{
    T *object = const_cast<T *>(volatile_object);
    if (goes_straight(object)) {
        log_change(object, sizeof *object);
        *object = value;
        return;
    }
    cell &at = reach(object);
    rl::thread_info_base &thread = *rl::ctx().threadx_;
    const unsigned index = order == __ATOMIC_RELAXED   ? thread.atomic_store_relaxed(at.data)
                           : order == __ATOMIC_SEQ_CST ? thread.atomic_store_seq_cst(at.data)
                                                       : thread.atomic_store_release(at.data);
    written(at, object, value, index, "store", order, caller);
}

unsigned rmw_index(rl::atomic_data *data, int order)
{
    rl::thread_info_base &thread = *rl::ctx().threadx_;
    bool aba;
    if (order == __ATOMIC_RELAXED) return thread.atomic_rmw_relaxed(data, aba);
    if (order == __ATOMIC_RELEASE) return thread.atomic_rmw_release(data, aba);
    if (order == __ATOMIC_ACQ_REL) return thread.atomic_rmw_acq_rel(data, aba);
    if (order == __ATOMIC_SEQ_CST) return thread.atomic_rmw_seq_cst(data, aba);
    return thread.atomic_rmw_acquire(data, aba);
}

/* Replaces the newest value by what `change_to` makes of it; returns the one before. */
template <typename T, typename Change>
T atomic_rmw(volatile T *volatile_object, const Change &change_to, int order, const void *caller)
{
    T *object = const_cast<T *>(volatile_object);
    if (goes_straight(object)) {
        log_change(object, sizeof *object);
        const T before = *object;
        *object = change_to(before);
        return before;
    }
    cell &at = reach(object);
    const T before = T(at.newest);
    written(at, object, change_to(before), rmw_index(at.data, order), "read and write", order,
            caller);
    return before;
}

template <typename T>
bool atomic_cas(volatile T *volatile_object, T *expected, T value, int order, int failure,
                const void *caller)
{
    T *object = const_cast<T *>(volatile_object);
    if (goes_straight(object)) {
        const bool is_same = *object == *expected;
        log_change(object, sizeof *object);
        (is_same ? *object : *expected) = is_same ? value : *object;
        return is_same;
    }
    cell &at = reach(object);
    if (T(at.newest) == *expected) {
        written(at, object, value, rmw_index(at.data, order), "compare and write", order, caller);
        return true;
    }
    rl::thread_info_base &thread = *rl::ctx().threadx_;
    if (failure == __ATOMIC_RELAXED)
        thread.atomic_load_relaxed_rmw(at.data);
    else if (failure == __ATOMIC_SEQ_CST)
        thread.atomic_load_seq_cst_rmw(at.data);
    else
        thread.atomic_load_acquire_rmw(at.data);
    *expected = T(at.newest);
    tell("compare in vain", object, at.newest, failure, caller);
    note_atomic(at, false);
    return false;
}

/* ---- plain accesses -------------------------------------------------------------------------- */

void plain_access(void *address, size_t bytes, bool writes, const void *caller)
{
    if (writes) log_change(address, bytes);
    if (is_direct || !is_running || !is_watched(address)) return;
    char *at = static_cast<char *>(address);
    for (size_t done = 0; done < bytes; done += 8) {
        rl::thread_info_base &thread = *rl::ctx().threadx_;
        cell &here = cell_of(at + done);
        if (here.plain == NULL) here.plain = rl::ctx().var_ctor();
        tell(writes ? "write" : "read", at + done, bytes, -1, caller);
        if (here.seen != NULL && !the_kind->is_after(here.seen, writes))
            fail("plain access beside an atomic one", rl::test_result_data_race);
        if (!(writes ? here.plain->store(thread) : here.plain->load(thread)))
            fail("data race", rl::test_result_data_race);
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

void run_begins()
{
    undo_to(0);
    used_count = 0;
    run_number++;
    spinning = 0;
    memset(key_value, 0, sizeof key_value);
    for (unsigned t = 0; t < THREADS_MAX; t++) memcpy(tls_image[t], tls_fresh, tls_bytes);
    memcpy(tls_start, tls_fresh, tls_bytes);
    current = 0;
    is_running = is_direct = true;
}

template <int N> struct suite : rl::test_suite<suite<N>, N> {
    void before()
    {
        run_begins();
        if (the_case->before != NULL) the_case->before();
        model_become(0);
        is_direct = false;
    }
    void thread(unsigned index)
    {
        memcpy(tls_start, tls_image[index], tls_bytes);
        current = index;
        spinning = 0;
        the_case->thread(index);
        memcpy(tls_image[index], tls_start, tls_bytes);
    }
    void after()
    {
        is_direct = true;
        if (the_case->after != NULL) the_case->after();
        cells_forget();
    }
};

template <int N> bool search(rl::test_params &params)
{
    the_kind = &kind_of<N>::it;
    return rl::simulate<suite<N>>(params);
}

/* ---- the process ----------------------------------------------------------------------------- */

int find_tls(struct dl_phdr_info *info, size_t, void *)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
        tls_start = static_cast<char *>(info->dlpi_tls_data);
        tls_bytes = info->dlpi_phdr[i].p_memsz;
    }
    return 1; /* the program itself comes first, and is all that is asked for */
}

template <typename T> T *memory(size_t count)
{
    void *got = mmap(NULL, count * sizeof(T), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) abort();
    return static_cast<T *>(got);
}

void machine_make()
{
    dl_iterate_phdr(find_tls, NULL);
    if (tls_start == NULL || tls_bytes > TLS_BYTES_MAX) abort();
    memcpy(tls_fresh, tls_start, tls_bytes);
    changes = memory<change>(changes_max);
    cells = memory<cell>(cells_max);
    used = memory<cell *>(cells_max);
    if (!range_add(region, region_bytes)) abort();
}

const model_case *case_named(const char *name)
{
    for (size_t i = 0; i < model_case_count; i++)
        if (strcmp(model_cases[i].name, name) == 0) return &model_cases[i];
    return NULL;
}

const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0) return argv[i + 1];
    return otherwise;
}

} // namespace

extern "C" {
bool hz_start(void);
bool hz_freed_make(size_t first, size_t pages);
void hz_freed_put(size_t first, size_t pages, uint32_t now_ms);
}

/* As a process has it that has freed something: the first time that is told apart from those of the
 * pages beside it is 8,192 writes, and more work than the rest of a run. */
static bool times_told_apart()
{
    if (!hz_freed_make(0, 1)) return false;
    hz_freed_put(0, 1, 0);
    return true;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < model_case_count; i++) puts(model_cases[i].name);
        return 0;
    }
    the_case = argc > 1 ? case_named(argv[1]) : NULL;
    if (the_case == NULL) {
        fprintf(stderr, "usage: model CASE --search random|bound --first I --runs N --bound N\n");
        return 2;
    }
    clearenv();
    setenv("HZ_STRICT", "1", 1);
    for (const char *const *setting = the_case->settings; *setting != NULL; setting++)
        putenv(const_cast<char *>(*setting));
    machine_make();
    if (!the_case->is_cold && !(hz_start() && times_told_apart())) return 3;
    rl::test_params params;
    std::ostream silent(NULL);
    const bool is_random = strcmp(option(argc, argv, "--search", "random"), "random") == 0;
    const char *first = is_random ? option(argc, argv, "--first", "1") : "1";
    params.search_type = is_random ? rl::sched_random : rl::sched_bound;
    if (is_random) params.initial_state = first; /* the number of a run is its seed */
    params.iteration_count =
        strtoull(option(argc, argv, "--runs", "10000"), NULL, 10) + strtoull(first, NULL, 10) - 1;
    params.context_bound = unsigned(atoi(option(argc, argv, "--bound", "2")));
    params.execution_depth_limit = 20000;
    params.output_stream = &std::cout; /* one that allocates would meet Relacy's operator new */
    params.progress_stream = &silent;
    const bool is_good = the_case->threads == 2 ? search<2>(params) : search<3>(params);
    is_running = false;
    std::cout << the_case->name << ": "
              << (is_good ? "nothing found" : rl::test_result_str(params.test_result)) << " after "
              << params.stop_iteration << " runs" << std::endl;
    return is_good ? 0 : 1;
}

/* ---- what cases ask for ---------------------------------------------------------------------- */

extern "C" {

void model_become(unsigned thread)
{
    memcpy(tls_image[current], tls_start, tls_bytes);
    memcpy(tls_start, tls_image[thread], tls_bytes);
    current = thread;
}

void model_wait(void)
{
    if (is_direct) fail("waits for ever", rl::test_result_deadlock);
    spinning = 0;
    switching([] { rl::ctx().yield(1, RL_INFO); });
}

void model_fail(const char *why)
{
    fail(why, rl::test_result_user_assert_failed);
}

void model_thread_ends(void)
{
    for (unsigned key = 0; key < key_count; key++) {
        void *value = key_value[current][key];
        key_value[current][key] = NULL;
        if (value != NULL) key_destructor[key](value);
    }
}

void model_fork(void (*child)(void))
{
    for (unsigned i = fork_count; i-- > 0;)
        if (forks[i].prepare != NULL) forks[i].prepare();
    char mine[TLS_BYTES_MAX];
    const size_t mark = change_count;
    memcpy(mine, tls_start, tls_bytes);
    is_direct = true;
    for (unsigned i = 0; i < fork_count; i++)
        if (forks[i].child != NULL) forks[i].child();
    child();
    undo_to(mark);
    memcpy(tls_start, mine, tls_bytes);
    is_direct = false;
    for (unsigned i = 0; i < fork_count; i++)
        if (forks[i].parent != NULL) forks[i].parent();
}

/* ---- what hz asks of the C library and of the system ------------------------------------------
 */

void *model_memmove(void *to, const void *from, size_t bytes)
{
    plain_access(const_cast<void *>(from), bytes, false, __builtin_return_address(0));
    plain_access(to, bytes, true, __builtin_return_address(0));
    return memmove(to, from, bytes);
}

void *model_memset(void *to, int byte, size_t bytes)
{
    plain_access(to, bytes, true, __builtin_return_address(0));
    return memset(to, byte, bytes);
}

int model_key_create(unsigned *key, void (*destructor)(void *))
{
    log_change(&key_count, sizeof key_count);
    plain_access(key, sizeof *key, true, __builtin_return_address(0));
    key_destructor[key_count] = destructor;
    *key = key_count++;
    return 0;
}

int model_setspecific(unsigned key, const void *value)
{
    key_value[current][key] = const_cast<void *>(value);
    return 0;
}

int model_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    const fork_handlers handlers = {prepare, parent, child};
    log_change(&fork_count, sizeof fork_count);
    forks[fork_count++] = handlers;
    return 0;
}

/* A thread that spins keeps the CPU, so that it comes to sleep and waking. */
void model_pause(void)
{
    if (!is_direct) spinning++;
}

void hz_os_sleep_while(uint32_t *word, uint32_t value)
{
    if (goes_straight(word)) {
        if (*word == value) fail("sleeps for ever", rl::test_result_deadlock);
        return;
    }
    spinning = 0;
    may_switch();
    cell &at = cell_of(word);
    rl::atomic_data *const data = data_of(at, *word);
    tell("sleep while", word, at.newest, __ATOMIC_RELAXED, __builtin_return_address(0));
    rl::ctx().threadx_->atomic_load_relaxed_rmw(data); /* the system sees the newest value */
    if (uint32_t(at.newest) == value) switching([data] { the_kind->sleep(data); });
}

void hz_os_wake_one(uint32_t *word)
{
    if (goes_straight(word)) return;
    may_switch();
    tell("wake", word, 0, __ATOMIC_RELAXED, __builtin_return_address(0));
    the_kind->wake(data_of(cell_of(word), *word));
}

void *hz_os_map(size_t bytes)
{
    log_change(&region_used, sizeof region_used);
    void *got = region + region_used;
    region_used += (bytes + 4095) & ~size_t(4095);
    return region_used <= region_bytes ? got : NULL;
}

int hz_os_claim(void *address, size_t bytes, bool)
{
    enum { CLAIMED, TAKEN };
    return range_add(static_cast<char *>(address), bytes) ? CLAIMED : TAKEN;
}

/* Of what it makes zero nearly all is zero already: only the rest is a change. */
bool hz_os_purge(void *address, size_t bytes)
{
    const size_t system_page = 4096;
    for (size_t at = 0; at < bytes; at += system_page)
        plain_access(static_cast<char *>(address) + at, 8, true, __builtin_return_address(0));
    uint64_t *const words = static_cast<uint64_t *>(address);
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        if (words[i] == 0) continue;
        log_change(&words[i], sizeof *words);
        words[i] = 0;
    }
    return true;
}

#define ANSWERS(type, name, parameters, answer)                                                    \
    type name parameters                                                                           \
    {                                                                                              \
        return answer;                                                                             \
    }
ANSWERS(bool, hz_os_renew, (void *at, size_t bytes), hz_os_purge(at, bytes))
ANSWERS(bool, hz_os_uncommit, (void *at, size_t bytes), hz_os_purge(at, bytes))
ANSWERS(uintptr_t, hz_os_addresses, (void), uintptr_t(1) << 47)
ANSWERS(bool, hz_os_forbid, (void *, size_t), true)
ANSWERS(bool, hz_os_is_unmapped, (void *, size_t), true)
ANSWERS(bool, hz_os_allow_writing, (void *, size_t), true)
ANSWERS(bool, hz_os_move, (void *, void *, size_t), false)
ANSWERS(bool, hz_os_is_one_mapping, (void *, size_t), false)
ANSWERS(bool, hz_os_is_commit_strict, (void), false)
ANSWERS(uint32_t, hz_os_now_ms, (void), 1000)
ANSWERS(uint64_t, hz_os_now_ns, (void), UINT64_C(1000000000))
ANSWERS(uint64_t, hz_os_ticks, (void), UINT64_C(1000000000))
ANSWERS(uint32_t, hz_os_ticks_of_ms, (void), 1000000)
ANSWERS(uint32_t, hz_os_ticks_settle, (void), 1000)
ANSWERS(uint64_t, hz_os_address_space_left, (void), UINT64_C(64) << 20)
ANSWERS(uint32_t, hz_os_allowed, (uint64_t * memory), (*memory = UINT64_C(1) << 32, 2))
ANSWERS(uint32_t, hz_os_nodes, (void), 1)
ANSWERS(uint32_t, hz_os_node, (void), 0)
ANSWERS(bool, hz_os_is_privileged, (void), false)
ANSWERS(uintptr_t, hz_lock_me_, (void), 64 * (current + 1))
ANSWERS(void, hz_os_yield, (void), model_wait())
ANSWERS(void, hz_os_write_stderr, (const char *text, size_t length),
        void(fwrite(text, 1, length, stderr)))
ANSWERS(void, model_abort, (void), model_fail("hz ended the program"))

void hz_os_random(void *bytes, size_t count)
{
    unsigned char *at = static_cast<unsigned char *>(bytes);
    for (size_t i = 0; i < count; i++) at[i] = static_cast<unsigned char>(i * 151 + 77);
}

/* ---- reports of -fsanitize=thread -------------------------------------------------------------
 */

#define CALLER __builtin_return_address(0)

#define PLAIN_ONE(name, bytes, writes)                                                             \
    ANSWERS(void, __tsan_##name##bytes, (void *at), plain_access(at, bytes, writes, CALLER))
#define PLAIN(bytes)                                                                               \
    PLAIN_ONE(read, bytes, false)                                                                  \
    PLAIN_ONE(write, bytes, true)                                                                  \
    PLAIN_ONE(unaligned_read, bytes, false)                                                        \
    PLAIN_ONE(unaligned_write, bytes, true)
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

ANSWERS(void, __tsan_read_range, (void *at, size_t bytes), plain_access(at, bytes, false, CALLER))
ANSWERS(void, __tsan_write_range, (void *at, size_t bytes), plain_access(at, bytes, true, CALLER))
ANSWERS(void, __tsan_init, (void), void())
ANSWERS(void, __tsan_func_entry, (void *), void())
ANSWERS(void, __tsan_func_exit, (void), void())
ANSWERS(void, __tsan_atomic_signal_fence, (int), void())

#define CHANGE(bits, T, name, changed)                                                             \
    T __tsan_atomic##bits##_##name(volatile T *at, T value, int order)                             \
    {                                                                                              \
        return atomic_rmw(                                                                         \
            at,                                                                                    \
            [value](T old) {                                                                       \
                (void)old;                                                                         \
                return T(changed);                                                                 \
            },                                                                                     \
            order, CALLER);                                                                        \
    }

#define COMPARE(bits, T, kind)                                                                     \
    ANSWERS(bool, __tsan_atomic##bits##_compare_exchange_##kind,                                   \
            (volatile T * at, T * expected, T value, int order, int failure),                      \
            atomic_cas(at, expected, value, order, failure, CALLER))

#define ATOMIC(bits, T)                                                                            \
    ANSWERS(T, __tsan_atomic##bits##_load, (const volatile T *at, int order),                      \
            atomic_load(at, order, CALLER))                                                        \
    ANSWERS(void, __tsan_atomic##bits##_store, (volatile T * at, T value, int order),              \
            atomic_store(at, value, order, CALLER))                                                \
    CHANGE(bits, T, exchange, value)                                                               \
    CHANGE(bits, T, fetch_add, old + value)                                                        \
    CHANGE(bits, T, fetch_sub, old - value)                                                        \
    CHANGE(bits, T, fetch_and, old &value)                                                         \
    CHANGE(bits, T, fetch_or, old | value)                                                         \
    CHANGE(bits, T, fetch_xor, old ^ value)                                                        \
    COMPARE(bits, T, strong)                                                                       \
    COMPARE(bits, T, weak)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int order)
{
    if (is_direct || !is_running) return;
    rl::context &c = rl::ctx();
    if (order == __ATOMIC_RELEASE)
        c.atomic_thread_fence_release();
    else if (order == __ATOMIC_ACQ_REL)
        c.atomic_thread_fence_acq_rel();
    else if (order == __ATOMIC_SEQ_CST)
        c.atomic_thread_fence_seq_cst();
    else if (order != __ATOMIC_RELAXED)
        c.atomic_thread_fence_acquire();
}

} // extern "C"
