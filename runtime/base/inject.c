/*
 * inject.c - reads DP_INJECT and brings its faults about, in the thread that reaches them.
 *
 * The faults are real ones: the signals come from the kernel, the wild write from an unmapped page,
 * the short write from a limit on file sizes. Each is logged with its monotonic time, so that a
 * test can tell what it caused from what was found.
 */
#include "runtime/base/inject.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/config_value.h"

#define FAULTS_MAX 16
#define WORD_MAX 64 /* bytes of one fault's text */
#define SLOW_FACTOR 10
#define SLOW_FACTOR_MAX 100000
#define SLOW_STAGE_NS INT64_C(100000000)
#define SHORT_BYTES INT64_C(4096)
#define SPAN "checkpoint"

typedef enum kind { KILL, STOP, SEGV, EXIT, ABORT, SLOW, DROP, REFUSE, SHORT, KINDS } kind_t;

static const char *const kind_names[KINDS] = {"kill", "stop", "segv",   "exit", "abort",
                                              "slow", "drop", "refuse", "short"};
/* STEP is written as its number, so it has no name to be found by. */
static const char *const stage_names[DP_INJECT_STAGES] = {
    "",       "rendezvous", "trace",      "wireup",  "first", "negotiating",
    "engine", "between",    "checkpoint", "finalize"};

#define POSSIBLE                                                                                   \
    "possible are WHAT:RANK[@WHERE][=VALUE] with WHAT kill, stop, segv, exit (=code), abort, "     \
    "slow "                                                                                        \
    "(=10x or a time), drop (=nth control message), refuse (=nth allocation), short (=bytes) and " \
    "WHERE a step, rendezvous, trace, wireup, first, negotiating, engine, between, checkpoint, "   \
    "finalize, or STAGE/STEP"

typedef struct fault {
    char word[WORD_MAX]; /* as it was written */
    kind_t kind;
    int rank;
    int has_where;
    dp_inject_stage_t stage;
    uint64_t step; /* from this one on; stages other than STEP may have none: 0 */
    int has_value;
    int is_factor; /* slow: value multiplies the step; else it is a time */
    int64_t value;
    atomic_int has_fired;
    _Atomic int64_t count; /* drop, refuse: seen so far */
} fault_t;

struct dp_inject {
    fault_t faults[FAULTS_MAX];
    int count;
    int rank;
    const dp_log_t *log;
    void *user;
    _Atomic(dp_inject_abort_fn) abort; /* its store releases user */
    _Atomic uint64_t step;
    _Atomic uint64_t step_start_ns; /* of its own time: without that spent waiting */
    atomic_int span_depth;          /* spans open since, and with, that of the checkpoint */
    struct rlimit file_size;
    struct sigaction file_size_action;
    atomic_int is_limited;
};

/* ---- Reading -------------------------------------------------------------------------------- */

static dp_status_t refuse_fault(dp_error_t *error, const char *word, const char *what)
{
    return dp_error_set(error, DP_ERR_CONFIG, "DP_INJECT: '%s' %s; %s", word, what, POSSIBLE);
}

static int find_fault_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (names[i][0] != '\0' && strcmp(names[i], name) == 0) return i;
    }
    return -1;
}

static int read_number(const char *text, int64_t max, int64_t *value)
{
    return dp_parse_integer(text, value) == NULL && *value >= 0 && *value <= max;
}

/* WHERE: a step, a stage, or both. */
static const char *read_where(char *text, fault_t *fault)
{
    char *slash = strchr(text, '/');
    int64_t step;
    int stage;

    fault->has_where = 1;
    if (text[0] >= '0' && text[0] <= '9') {
        if (!read_number(text, INT64_MAX, &step)) return "has a step that is no number";
        fault->step = (uint64_t)step;
        return NULL;
    }
    if (slash != NULL) {
        *slash = '\0';
        if (!read_number(slash + 1, INT64_MAX, &step)) return "has a step that is no number";
        fault->step = (uint64_t)step;
    }
    stage = find_fault_name(stage_names, DP_INJECT_STAGES, text);
    if (stage < 0) return "names no place";
    fault->stage = (dp_inject_stage_t)stage;
    return NULL;
}

static const char *read_slow(char *text, fault_t *fault)
{
    size_t bytes = strlen(text);

    if (bytes > 1 && text[bytes - 1] == 'x') {
        text[bytes - 1] = '\0';
        fault->is_factor = 1;
        if (fault->stage != DP_INJECT_STEP) return "can slow a stage down by a time only";
        return read_number(text, SLOW_FACTOR_MAX, &fault->value) && fault->value > 0
                   ? NULL
                   : "has a factor that is none";
    }
    return dp_parse_time(text, &fault->value);
}

static const char *read_value(char *text, fault_t *fault)
{
    fault->has_value = 1;
    switch (fault->kind) {
    case EXIT:
        return read_number(text, 255, &fault->value) ? NULL : "needs an exit code, 0 to 255";
    case SLOW:
        return read_slow(text, fault);
    case DROP:
    case REFUSE:
        return read_number(text, INT32_MAX, &fault->value) && fault->value > 0
                   ? NULL
                   : "needs a number, 1 or more";
    case SHORT:
        return dp_parse_bytes(text, &fault->value);
    case KILL:
    case STOP:
    case SEGV:
    case ABORT:
    case KINDS:
        break;
    }
    return "takes no value";
}

/* Sets what the text of a fault leaves out. NULL, or why the fault makes no sense. */
static const char *fill_in(fault_t *fault)
{
    const int lasts = fault->stage == DP_INJECT_TRACE || fault->stage == DP_INJECT_CHECKPOINT;

    if (fault->kind == DROP || fault->kind == REFUSE) {
        if (fault->has_where) return "counts from the start and takes no place";
        if (!fault->has_value) fault->value = 1;
    } else if (fault->kind == SHORT) {
        if (!lasts) return "needs a place: @trace or @checkpoint";
        if (!fault->has_value) fault->value = SHORT_BYTES;
    } else if (fault->kind == SLOW && !fault->has_value) {
        fault->is_factor = fault->stage == DP_INJECT_STEP;
        fault->value = fault->is_factor ? SLOW_FACTOR : SLOW_STAGE_NS;
    } else if (fault->kind != SLOW && !fault->has_where) {
        fault->stage = DP_INJECT_FIRST;
    }
    return NULL;
}

static dp_status_t read_fault(const char *word, fault_t *fault, dp_error_t *error)
{
    char copy[WORD_MAX];
    char *colon, *at, *equals;
    const char *what = NULL;
    int64_t rank;
    int kind;

    memset(fault, 0, sizeof(*fault));
    snprintf(fault->word, sizeof(fault->word), "%s", word);
    snprintf(copy, sizeof(copy), "%s", word);
    colon = strchr(copy, ':');
    if (colon == NULL) return refuse_fault(error, word, "names no rank");
    *colon = '\0';
    equals = strchr(colon + 1, '=');
    if (equals != NULL) *equals = '\0';
    at = strchr(colon + 1, '@');
    if (at != NULL) *at = '\0';
    kind = find_fault_name(kind_names, KINDS, copy);
    if (kind < 0) return refuse_fault(error, word, "is no fault that is known");
    fault->kind = (kind_t)kind;
    if (!read_number(colon + 1, INT32_MAX, &rank))
        return refuse_fault(error, word, "names no rank");
    fault->rank = (int)rank;
    if (at != NULL) what = read_where(at + 1, fault);
    if (what == NULL && equals != NULL) what = read_value(equals + 1, fault);
    if (what == NULL) what = fill_in(fault);
    return what == NULL ? DP_OK : refuse_fault(error, word, what);
}

/* Reads all faults; keeps those of `rank` in inject, unless that is NULL. */
static dp_status_t read_faults(const char *text, int rank, int size, dp_inject_t *inject,
                               dp_error_t *error)
{
    for (const char *at = text; *at != '\0';) {
        const size_t bytes = strcspn(at, ",");
        char word[WORD_MAX];
        fault_t fault;
        dp_status_t status;

        snprintf(word, sizeof(word), "%.*s", (int)dp_min(bytes, sizeof(word) - 1), at);
        if (bytes >= sizeof(word)) return refuse_fault(error, word, "goes on for too long");
        status = read_fault(word, &fault, error);
        if (status != DP_OK) return status;
        if (size > 0 && fault.rank >= size) {
            return dp_error_set(error, DP_ERR_CONFIG, "DP_INJECT: '%s': the job has %d rank%s",
                                word, size, size == 1 ? "" : "s");
        }
        if (inject != NULL && fault.rank == rank) {
            if (inject->count == FAULTS_MAX) return refuse_fault(error, word, "is one too many");
            memcpy(&inject->faults[inject->count++], &fault, sizeof(fault));
        }
        at += bytes;
        if (*at == ',' && at[1] == '\0')
            return refuse_fault(error, "", "is no fault that is known");
        at += *at == ',';
    }
    return DP_OK;
}

dp_status_t dp_inject_check(const char *text, dp_error_t *error)
{
    return read_faults(text, -1, 0, NULL, error);
}

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_inject_create(const char *text, int rank, int size, const dp_log_t *log,
                             dp_inject_t **out, dp_error_t *error)
{
    dp_inject_t *inject;
    dp_status_t status;

    *out = NULL;
    if (text[0] == '\0') return DP_OK;
    inject = calloc(1, sizeof(*inject));
    if (inject == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "DP_INJECT: no memory");
    inject->rank = rank;
    inject->log = log;
    status = read_faults(text, rank, size, inject, error);
    if (status != DP_OK || inject->count == 0) {
        free(inject);
        return status;
    }
    *out = inject;
    return DP_OK;
}

/* A test whose fault never happened has shown nothing: it is to know. */
static void tell_unfired(const dp_inject_t *inject)
{
    const unsigned long long step =
        (unsigned long long)atomic_load_explicit(&inject->step, memory_order_relaxed);
    const int has_stepped = atomic_load_explicit(&inject->step_start_ns, memory_order_relaxed) != 0;

    for (int i = 0; i < inject->count; i++) {
        const fault_t *fault = &inject->faults[i];
        const long long seen = (long long)atomic_load(&fault->count);

        if (fault->kind == DROP || fault->kind == REFUSE) {
            if (seen >= fault->value) continue;
            dp_log_warn(inject->log, "DP_INJECT: '%s' never came to pass: there were %lld %s",
                        fault->word, seen,
                        fault->kind == DROP ? "control messages" : "allocations");
        } else if (atomic_load(&fault->has_fired)) {
            continue;
        } else if (has_stepped) {
            dp_log_warn(inject->log,
                        "DP_INJECT: '%s' never came to pass: the last step that began was %llu",
                        fault->word, step);
        } else {
            dp_log_warn(inject->log, "DP_INJECT: '%s' never came to pass: no step began",
                        fault->word);
        }
    }
}

void dp_inject_destroy(dp_inject_t *inject)
{
    if (inject == NULL) return;
    tell_unfired(inject);
    dp_inject_release(inject, DP_INJECT_CHECKPOINT);
    free(inject);
}

void dp_inject_on_abort(dp_inject_t *inject, dp_inject_abort_fn abort, void *user)
{
    if (inject == NULL) return;
    inject->user = user;
    atomic_store(&inject->abort, abort);
}

/* ---- Doing harm ----------------------------------------------------------------------------- */

/* Writes the line that a test looks for. */
static void announce(const dp_inject_t *inject, const fault_t *fault, const char *where)
{
    const uint64_t now_ns = dp_now_ns();

    dp_log_error(
        inject->log, "DP_INJECT: %s %s, step %llu, at %llu.%09llu", kind_names[fault->kind], where,
        (unsigned long long)atomic_load_explicit(&inject->step, memory_order_relaxed),
        (unsigned long long)(now_ns / 1000000000u), (unsigned long long)(now_ns % 1000000000u));
}

static void pause_ns(uint64_t ns)
{
    struct timespec left = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* A wild write, as it happens: whatever handles that signal in this program gets to see it. */
static void write_wildly(void)
{
    volatile char *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (nowhere != MAP_FAILED) *nowhere = 1;
    raise(SIGSEGV); /* for a handler that returned */
}

static void limit_files(dp_inject_t *inject, int64_t bytes)
{
    struct rlimit limit;
    const struct sigaction ignore = {.sa_handler = SIG_IGN};

    if (atomic_exchange(&inject->is_limited, 1)) return;
    getrlimit(RLIMIT_FSIZE, &inject->file_size);
    sigaction(SIGXFSZ, &ignore, &inject->file_size_action); /* or it would be a death */
    limit = inject->file_size;
    limit.rlim_cur = dp_min((rlim_t)bytes, limit.rlim_max);
    setrlimit(RLIMIT_FSIZE, &limit);
}

static void free_files(dp_inject_t *inject)
{
    if (!atomic_exchange(&inject->is_limited, 0)) return;
    setrlimit(RLIMIT_FSIZE, &inject->file_size);
    sigaction(SIGXFSZ, &inject->file_size_action, NULL);
}

static void abort_job(dp_inject_t *inject)
{
    const dp_inject_abort_fn abort = atomic_load(&inject->abort);

    if (abort != NULL) {
        abort(inject->user, "DP_INJECT says so");
    } else {
        dp_log_warn(inject->log, "DP_INJECT: abort comes before there is a job to abort");
    }
}

static void do_harm(dp_inject_t *inject, const fault_t *fault)
{
    switch (fault->kind) {
    case KILL:
        kill(getpid(), SIGKILL);
        break;
    case STOP:
        kill(getpid(), SIGSTOP);
        break;
    case SEGV:
        write_wildly();
        break;
    case EXIT:
        _exit((int)fault->value);
    case ABORT:
        abort_job(inject);
        break;
    case SLOW:
        pause_ns((uint64_t)fault->value);
        break;
    case SHORT:
        limit_files(inject, fault->value);
        break;
    case DROP:
    case REFUSE:
    case KINDS:
        break;
    }
}

/* ---- Hooks ---------------------------------------------------------------------------------- */

void dp_inject_reach(dp_inject_t *inject, dp_inject_stage_t stage)
{
    const uint64_t step = atomic_load_explicit(&inject->step, memory_order_relaxed);
    char where[48];

    snprintf(where, sizeof(where), "%s%s", stage == DP_INJECT_STEP ? "" : "at ",
             stage == DP_INJECT_STEP ? "step begins" : stage_names[stage]);
    for (int i = 0; i < inject->count; i++) {
        fault_t *fault = &inject->faults[i];
        const int repeats = fault->kind == SLOW || fault->kind == SHORT;

        if (fault->kind == DROP || fault->kind == REFUSE) continue;
        if (fault->stage != stage || fault->is_factor || step < fault->step) continue;
        if (atomic_exchange(&fault->has_fired, 1)) {
            if (!repeats) continue;
        } else {
            announce(inject, fault, where);
        }
        do_harm(inject, fault);
    }
}

void dp_inject_release(dp_inject_t *inject, dp_inject_stage_t stage)
{
    if (stage == DP_INJECT_TRACE || stage == DP_INJECT_CHECKPOINT) free_files(inject);
}

void dp_inject_begin_step(dp_inject_t *inject, uint64_t step, uint64_t blocked_ns)
{
    atomic_store_explicit(&inject->step, step, memory_order_relaxed);
    atomic_store_explicit(&inject->step_start_ns, dp_now_ns() - blocked_ns, memory_order_relaxed);
    dp_inject_reach(inject, DP_INJECT_STEP);
}

/* Sleeps in proportion to the rank's own time in the step, so that it looks like a slow machine.
 * Time it waited for others is left out: two slow ranks would make each other slower for ever. */
static void stretch(dp_inject_t *inject, uint64_t blocked_ns)
{
    const uint64_t start_ns = atomic_load_explicit(&inject->step_start_ns, memory_order_relaxed);
    const uint64_t now_ns = dp_now_ns() - blocked_ns;

    for (int i = 0; i < inject->count && start_ns != 0; i++) {
        fault_t *fault = &inject->faults[i];

        if (!fault->is_factor) continue;
        if (atomic_load_explicit(&inject->step, memory_order_relaxed) < fault->step) continue;
        if (!atomic_exchange(&fault->has_fired, 1)) announce(inject, fault, "in steps");
        pause_ns((now_ns - start_ns) * (uint64_t)(fault->value - 1));
    }
}

void dp_inject_end_step(dp_inject_t *inject, uint64_t blocked_ns)
{
    stretch(inject, blocked_ns);
    dp_inject_reach(inject, DP_INJECT_BETWEEN);
}

void dp_inject_begin_span(dp_inject_t *inject, const char *name)
{
    if (atomic_load(&inject->span_depth) > 0) {
        atomic_fetch_add(&inject->span_depth, 1);
    } else if (name != NULL && strcmp(name, SPAN) == 0) {
        atomic_store(&inject->span_depth, 1);
        dp_inject_reach(inject, DP_INJECT_CHECKPOINT);
    }
}

void dp_inject_end_span(dp_inject_t *inject)
{
    if (atomic_load(&inject->span_depth) == 0) return;
    if (atomic_fetch_sub(&inject->span_depth, 1) == 1) {
        dp_inject_release(inject, DP_INJECT_CHECKPOINT);
    }
}

int dp_inject_counts(dp_inject_t *inject, int is_message)
{
    const kind_t kind = is_message ? DROP : REFUSE;
    int is_hit = 0;

    for (int i = 0; i < inject->count; i++) {
        fault_t *fault = &inject->faults[i];

        if (fault->kind != kind) continue;
        if (atomic_fetch_add(&fault->count, 1) + 1 != fault->value) continue;
        announce(inject, fault, is_message ? "a control message" : "an allocation");
        is_hit = 1;
    }
    return is_hit;
}
