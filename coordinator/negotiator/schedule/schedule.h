/*
 * schedule.h - the cached schedule, as the negotiator sees it: the hooks it calls, and nothing
 * else.
 *
 * The negotiator owns readiness, order and launch. Where rounds repeat themselves, the root may
 * order a schedule; from then on ranks launch by it and exchange almost no messages. All state of
 * that lies behind the two opaque pointers n->schedule and entry->schedule. The option
 * DP_WITH_SCHEDULE decides whether the files of this folder are compiled or none.c in their place,
 * which answers every hook as if no schedule existed.
 *
 *   launch.c             a rank under a schedule: what fits, what is launched, why it must end
 *   schedule_messages.c  what nodes send each other meanwhile
 *   detect.c             the root: finds rounds that repeat themselves, and makes a schedule of one
 *   resume.c             the root: brings an earlier schedule back
 *   catch_up.c           after a schedule: launches that not every rank could follow in time
 *
 * All hooks run on the thread that drives the negotiator. A hook that fails calls
 * dp_fatal() by itself. An *early launch* is one that this rank made by a schedule that has
 * ended, and that not all ranks had made: it is *unsettled* until the occurrence has been
 * negotiated.
 */
#ifndef DP_COORDINATOR_SCHEDULE_H
#define DP_COORDINATOR_SCHEDULE_H

#include "coordinator/negotiator/agree.h"

typedef struct dp_schedule dp_schedule_t; /* NULL: this build has none */

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_schedule_init(dp_negotiator_t *n, const dp_negotiator_options_t *options);
void dp_schedule_fini(dp_negotiator_t *n);
size_t dp_schedule_entry_bytes(void); /* of entry->schedule, zeroed; the table allocates it */

/* ---- Questions ------------------------------------------------------------------------------ */

/* dp_schedule_is_active(), in negotiator_internal.h: then nothing is negotiated. */
/* Is an early launch of this rank unsettled? view: in this group; NULL: in any. */
int dp_schedule_has_early(const dp_negotiator_t *n, const dp_group_view_t *view);
/* Has this rank still something to launch, or to be told, of a schedule that has ended? */
int dp_schedule_is_catching_up(const dp_negotiator_t *n);
/* Is the pending or next occurrence one that some rank has launched early? */
int dp_schedule_is_unsettled(const dp_entry_t *entry);
/* The root: can a rank have launched that far by the last schedule? */
int dp_schedule_can_be_ahead(const dp_negotiator_t *n, uint64_t ahead);

/* ---- A submission of this rank -------------------------------------------------------------- */

/* 1: a schedule is active and looks after it; 0: it is to be negotiated. */
int dp_schedule_submitted(dp_negotiator_t *n, dp_entry_t *entry);
/* Adds to this rank's arrival what the last schedule left. 1: this rank has launched the occurrence
 * early, which stands for a submission; *since_ns says since when others are waited for. */
int dp_schedule_stand_in(const dp_negotiator_t *n, const dp_entry_t *entry, dp_arrival_t *arrival,
                         uint64_t *since_ns);

/* ---- An occurrence ends --------------------------------------------------------------------- */

/* Launches late what is settled by now. Before anything that is ordered after it. */
void dp_schedule_catch_up(dp_negotiator_t *n);
/* The occurrence is launched. 1: it was unsettled, so its place in the order is an earlier one. */
int dp_schedule_agreed(dp_negotiator_t *n, dp_entry_t *entry, uint32_t absent);
void dp_schedule_failed(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status,
                        const char *text);
/* Keeps the newest output back, if this rank has buckets before `behind` to launch. */
void dp_schedule_defer(dp_negotiator_t *n, uint64_t behind);

/* ---- The root orders ------------------------------------------------------------------------ */

/* A launch must come behind what any of its ranks had launched early. */
int dp_schedule_has_floors(const dp_negotiator_t *n);
uint64_t dp_schedule_floor(const dp_negotiator_t *n, const dp_entry_t *entry);
void dp_schedule_raise_floor(dp_negotiator_t *n, const dp_entry_t *entry, uint64_t floor);
/* This was ordered; is_first: of its LAUNCH. */
void dp_schedule_note_order(dp_negotiator_t *n, dp_entry_t *entry,
                            const dp_launch_entry_t *launch_entry, int is_first);
void dp_schedule_group_ended(dp_negotiator_t *n); /* its entries are going */

/* ---- Messages ------------------------------------------------------------------------------- */

/* DIVERGE, COUNT, REACHED; the caller has checked that a schedule is active. */
void dp_schedule_from_child(dp_negotiator_t *n, int from, int child, const dp_item_t *item);
/* CONFIRM, PAUSE. */
void dp_schedule_from_parent(dp_negotiator_t *n, int from, const dp_item_t *item);
/* SCHEDULE, SCHEDULE_END: passes it on, and begins the next epoch. Its bytes lie in the reader
 * from `begin` on, and the buckets of SCHEDULE are still to be read. */
void dp_schedule_turn(dp_negotiator_t *n, int from, const dp_item_t *item, dp_reader_t *reader,
                      size_t begin);
/* GIVE_UP of a rank at or below a child; position: what it had seen of the order. */
void dp_schedule_give_up(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry);

/* ---- The schedule must end ------------------------------------------------------------------ */

/* This rank, or one below it, must leave the schedule; the first reason stays. */
void dp_schedule_leave(dp_negotiator_t *n, dp_schedule_end_reason_t reason, int rank,
                       const char *text);
/* A thread waits for something that is not launched. */
void dp_schedule_waits(dp_negotiator_t *n);

/* ---- Time, and flush.c ---------------------------------------------------------------------- */

void dp_schedule_round(dp_negotiator_t *n); /* the program has declared that a round is over */
void dp_schedule_tick(dp_negotiator_t *n);
uint64_t dp_schedule_deadline(const dp_negotiator_t *n);
void dp_schedule_resume(dp_negotiator_t *n); /* the root: SCHEDULE, if an earlier one fits again */
void dp_schedule_detect(dp_negotiator_t *n); /* the root: SCHEDULE, if rounds repeat themselves */
void dp_schedule_flush(dp_negotiator_t *n);  /* while active: launches, then messages */

#endif
