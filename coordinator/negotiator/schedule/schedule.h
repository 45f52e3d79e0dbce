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
 *   standing.c           how far this rank and those below it have come
 *   schedule_messages.c  what ranks send each other meanwhile
 *   schedule_item.c      a whole schedule as an item of a frame
 *   eligible.c           which tensors a schedule can hold, and when one can begin
 *   detect.c             the root: finds rounds that repeat themselves, and makes a schedule of one
 *   resume.c             the root: brings an earlier schedule back
 *   catch_up.c           after a schedule: launches that not every rank could follow in time
 *   unsettled.c          likewise: which launches are still to be agreed on
 *   late_launch.c        likewise: this rank launches late what others had launched
 *   give_up.c            likewise: late launches that would never come
 *
 * Nearly always there is nothing to do: no schedule is active, and none has left anything behind.
 * So the hooks of every step are inline functions that look at n->epoch and n->marks first, and
 * only then call the module's function of that purpose, which is declared above each. Nobody else
 * calls those.
 *
 * All hooks run on the thread that drives the negotiator. A hook that fails calls
 * dp_fatal() by itself. An *early launch* is one that this rank made by a schedule that has
 * ended, and that not all ranks had made: it is *unsettled* until the occurrence has been
 * negotiated.
 */
#ifndef DP_COORDINATOR_SCHEDULE_H
#define DP_COORDINATOR_SCHEDULE_H

#include "coordinator/negotiator/negotiator_internal.h"

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_schedule_init(dp_negotiator_t *n, const dp_negotiator_options_t *options);
void dp_schedule_fini(dp_negotiator_t *n);
size_t dp_schedule_entry_bytes(void); /* of entry->schedule, zeroed; the table allocates it */

/* ---- Questions ------------------------------------------------------------------------------ */

/* dp_schedule_is_active(), in negotiator_internal.h: then nothing is negotiated. */
int dp_catch_up_has_early(const dp_negotiator_t *n, const dp_group_view_t *view);
/* Is an early launch of this rank unsettled? view: in this group; NULL: in any. */
static inline int dp_schedule_has_early(const dp_negotiator_t *n, const dp_group_view_t *view)
{
    return n->marks.in_catch_up && dp_catch_up_has_early(n, view);
}

int dp_catch_up_has_own(const dp_negotiator_t *n);
/* Has this rank still something to launch, or to be told, of a schedule that has ended? */
static inline int dp_schedule_is_catching_up(const dp_negotiator_t *n)
{
    return n->marks.in_catch_up && dp_catch_up_has_own(n);
}

int dp_catch_up_is_unsettled(const dp_entry_t *entry);
/* Is the pending or next occurrence one that some rank has launched early? */
static inline int dp_schedule_is_unsettled(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    return n->marks.in_catch_up && dp_catch_up_is_unsettled(entry);
}

/* The root: can a rank have launched that far by the last schedule? */
int dp_schedule_can_be_ahead(const dp_negotiator_t *n, uint64_t ahead);

/* ---- A submission of this rank -------------------------------------------------------------- */

void dp_schedule_check_fit(dp_negotiator_t *n, dp_entry_t *entry);
/* 1: a schedule is active and looks after it; 0: it is to be negotiated. */
static inline int dp_schedule_submitted(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (!dp_schedule_is_active(n)) return 0;
    dp_schedule_check_fit(n, entry);
    return 1;
}

int dp_catch_up_stand_in(const dp_negotiator_t *n, const dp_entry_t *entry, dp_arrival_t *arrival,
                         uint64_t *since_ns);
/* Adds to this rank's arrival what the last schedule left. 1: this rank has launched the occurrence
 * early, which stands for a submission; *since_ns says since when others are waited for. */
static inline int dp_schedule_stand_in(const dp_negotiator_t *n, const dp_entry_t *entry,
                                       dp_arrival_t *arrival, uint64_t *since_ns)
{
    return n->marks.in_catch_up && dp_catch_up_stand_in(n, entry, arrival, since_ns);
}

/* ---- An occurrence ends --------------------------------------------------------------------- */

void dp_catch_up_launch(dp_negotiator_t *n);
/* Launches late what is settled by now. Before anything that is ordered after it. */
static inline void dp_schedule_catch_up(dp_negotiator_t *n)
{
    if (n->marks.in_catch_up) dp_catch_up_launch(n);
}

int dp_catch_up_agreed(dp_negotiator_t *n, dp_entry_t *entry, uint32_t absent);
/* The occurrence is launched. 1: it was unsettled, so its place in the order is an earlier one. */
static inline int dp_schedule_agreed(dp_negotiator_t *n, dp_entry_t *entry, uint32_t absent)
{
    return n->marks.in_catch_up && dp_catch_up_agreed(n, entry, absent);
}

void dp_catch_up_failed(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status,
                        const char *text);
static inline void dp_schedule_failed(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status,
                                      const char *text)
{
    if (n->marks.in_catch_up) dp_catch_up_failed(n, entry, status, text);
}

void dp_catch_up_defer(dp_negotiator_t *n, uint64_t behind);
/* Keeps the newest output back, if this rank has buckets before `behind` to launch. */
static inline void dp_schedule_defer(dp_negotiator_t *n, uint64_t behind)
{
    if (n->marks.in_catch_up) dp_catch_up_defer(n, behind);
}

/* ---- The root orders ------------------------------------------------------------------------ */

int dp_catch_up_must_wait(const dp_negotiator_t *n, const dp_entry_t *entry);
/* Must a complete tensor that is unsettled wait, because a bucket before its own is unsettled, or
 * another tensor of its bucket is not complete? */
static inline int dp_schedule_must_wait(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    return n->marks.in_catch_up && dp_catch_up_must_wait(n, entry);
}

int dp_catch_up_has_floors(const dp_negotiator_t *n);
/* A launch must come behind what any of its ranks had launched early. */
static inline int dp_schedule_has_floors(const dp_negotiator_t *n)
{
    return n->marks.in_catch_up && dp_catch_up_has_floors(n);
}

uint64_t dp_schedule_floor(const dp_negotiator_t *n, const dp_entry_t *entry);
void dp_schedule_raise_floor(dp_negotiator_t *n, const dp_entry_t *entry, uint64_t floor);

void dp_detect_note_order(dp_negotiator_t *n, dp_entry_t *entry,
                          const dp_launch_entry_t *launch_entry, int is_first);
/* This was ordered; is_first: of its LAUNCH. */
static inline void dp_schedule_note_order(dp_negotiator_t *n, dp_entry_t *entry,
                                          const dp_launch_entry_t *launch_entry, int is_first)
{
    if (n->marks.may_order) dp_detect_note_order(n, entry, launch_entry, is_first);
}

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

void dp_schedule_note_waiter(dp_negotiator_t *n);
/* A thread waits for something that is not launched. */
static inline void dp_schedule_waits(dp_negotiator_t *n)
{
    if (dp_schedule_is_active(n) || n->marks.in_catch_up) dp_schedule_note_waiter(n);
}

/* ---- Time, and flush.c ---------------------------------------------------------------------- */

void dp_detect_end_round(dp_negotiator_t *n);
/* The program has declared that a round is over. */
static inline void dp_schedule_round(dp_negotiator_t *n)
{
    if (n->marks.may_order) dp_detect_end_round(n);
}

void dp_schedule_check_time(dp_negotiator_t *n);
static inline void dp_schedule_tick(dp_negotiator_t *n)
{
    if (dp_schedule_is_active(n)) dp_schedule_check_time(n);
}

uint64_t dp_schedule_next_check(const dp_negotiator_t *n);
static inline uint64_t dp_schedule_deadline(const dp_negotiator_t *n)
{
    return dp_schedule_is_active(n) ? dp_schedule_next_check(n) : UINT64_MAX;
}

void dp_catch_up_check_time(dp_negotiator_t *n);
/* The same of late launches that a thread waits behind. */
static inline void dp_schedule_late_tick(dp_negotiator_t *n)
{
    if (n->marks.in_catch_up) dp_catch_up_check_time(n);
}

uint64_t dp_catch_up_next_check(const dp_negotiator_t *n);
static inline uint64_t dp_schedule_late_deadline(const dp_negotiator_t *n)
{
    return n->marks.in_catch_up ? dp_catch_up_next_check(n) : UINT64_MAX;
}

void dp_resume_order(dp_negotiator_t *n);
/* The root: SCHEDULE, if an earlier one fits again. */
static inline void dp_schedule_resume(dp_negotiator_t *n)
{
    if (n->marks.may_order && !dp_schedule_is_active(n)) dp_resume_order(n);
}

void dp_detect_order(dp_negotiator_t *n);
/* The root: SCHEDULE, if rounds repeat themselves. */
static inline void dp_schedule_detect(dp_negotiator_t *n)
{
    if (n->marks.may_order && !dp_schedule_is_active(n)) dp_detect_order(n);
}

void dp_schedule_launch_due(dp_negotiator_t *n);
void dp_schedule_send_due(dp_negotiator_t *n);
/* While a schedule is active: launches, then messages. */
static inline void dp_schedule_flush(dp_negotiator_t *n)
{
    if (!dp_schedule_is_active(n)) return;
    dp_schedule_launch_due(n);
    dp_schedule_send_due(n);
}

#endif
