/*
 * inject.h - faults on purpose: DP_INJECT brings one rank to harm at a chosen moment.
 *
 * A comma list of WHAT:RANK[@WHERE][=VALUE], understood by every program that uses libdp. Hooks at
 * the stages below cost a test for NULL where nothing is asked for, which is on every rank that no
 * fault names. It must not know what the program does, nor anything above runtime/base: a function
 * that a fault needs from there (to abort the job) is handed to it.
 *
 *     kill:1@30                SIGKILL of rank 1 at the beginning of step 30
 *     exit:2@engine/3=5        exit code 5, from inside a collective, from step 3 on
 *     slow:0                   rank 0 takes ten times as long for every step
 *     drop:1=7,refuse:3=2      the 7th control message, the 2nd allocation of dp memory
 *     short:0@checkpoint=64K   no file grows past 64K while a checkpoint is written
 */
#ifndef DP_BASE_INJECT_H
#define DP_BASE_INJECT_H

#include <stdatomic.h>

#include "runtime/base/error.h"
#include "runtime/base/log.h"

/* Where a rank can be. */
typedef enum dp_inject_stage {
    DP_INJECT_STEP,        /* dp_step_begin() */
    DP_INJECT_RENDEZVOUS,  /* connected to the launcher, has not told the ranks of itself */
    DP_INJECT_TRACE,       /* makes the recorder's file */
    DP_INJECT_WIREUP,      /* has met all ranks; its coordinator does not run yet */
    DP_INJECT_FIRST,       /* submits an operation */
    DP_INJECT_NEGOTIATING, /* the coordinator is about to send a control message */
    DP_INJECT_ENGINE,      /* all ranks have agreed; this one is about to move data */
    DP_INJECT_BETWEEN,     /* dp_step_end() */
    DP_INJECT_CHECKPOINT,  /* the program began a span of this name */
    DP_INJECT_FINALIZE,    /* dp_finalize() */
    DP_INJECT_STAGES
} dp_inject_stage_t;

typedef struct dp_inject dp_inject_t;

/* Whether a text makes sense; DP_ERR_CONFIG shows what is possible. */
dp_status_t dp_inject_check(const char *text, dp_error_t *error);

/**
 * Takes the faults of one rank out of a text.
 *
 * @param size ranks of the job; a fault for a rank that is none of them is an error
 * @param log  borrowed until destroy; every fault says there that it happens, and when
 * @param out  NULL where the text holds no fault for this rank
 * @return DP_OK, DP_ERR_CONFIG, DP_ERR_NO_MEMORY
 */
dp_status_t dp_inject_create(const char *text, int rank, int size, const dp_log_t *log,
                             dp_inject_t **out, dp_error_t *error);
void dp_inject_destroy(dp_inject_t *inject); /* NULL is fine */

/* How `abort` ends the job; before that it only warns. Faults may happen meanwhile. */
typedef void (*dp_inject_abort_fn)(void *user, const char *text);
void dp_inject_on_abort(dp_inject_t *inject, dp_inject_abort_fn abort, void *user);

/* ---- Hooks: any thread, NULL is fine and free ----------------------------------------------- */

void dp_inject_reach(dp_inject_t *inject, dp_inject_stage_t stage);
void dp_inject_release(dp_inject_t *inject, dp_inject_stage_t stage);
void dp_inject_begin_step(dp_inject_t *inject, uint64_t step, uint64_t blocked_ns);
void dp_inject_end_step(dp_inject_t *inject, uint64_t blocked_ns);
void dp_inject_begin_span(dp_inject_t *inject, const char *name);
void dp_inject_end_span(dp_inject_t *inject);
int dp_inject_counts(dp_inject_t *inject, int is_message);

/* The rank is at a stage now; may not return. */
static inline void dp_inject_enter(dp_inject_t *inject, dp_inject_stage_t stage)
{
    if (inject != NULL) dp_inject_reach(inject, stage);
}

/* And leaves it: of TRACE and CHECKPOINT, where a fault can last. */
static inline void dp_inject_leave(dp_inject_t *inject, dp_inject_stage_t stage)
{
    if (inject != NULL) dp_inject_release(inject, stage);
}

/* A step begins or ends. blocked_ns: how long the program waited for others, ever; not its own
 * slowness. */
static inline void dp_inject_step(dp_inject_t *inject, uint64_t step,
                                  const _Atomic uint64_t *blocked_ns)
{
    if (inject != NULL) dp_inject_begin_step(inject, step, atomic_load(blocked_ns));
}

static inline void dp_inject_step_end(dp_inject_t *inject, const _Atomic uint64_t *blocked_ns)
{
    if (inject != NULL) dp_inject_end_step(inject, atomic_load(blocked_ns));
}

/* Spans of the program: that called "checkpoint" is a stage. */
static inline void dp_inject_span(dp_inject_t *inject, const char *name)
{
    if (inject != NULL) dp_inject_begin_span(inject, name);
}

static inline void dp_inject_span_end(dp_inject_t *inject)
{
    if (inject != NULL) dp_inject_end_span(inject);
}

/* 1: this control message is not to be sent. Counts them. */
static inline int dp_inject_drops(dp_inject_t *inject)
{
    return inject != NULL && dp_inject_counts(inject, 1);
}

/* 1: this allocation is to fail. Counts them. */
static inline int dp_inject_refuses(dp_inject_t *inject)
{
    return inject != NULL && dp_inject_counts(inject, 0);
}

#endif
