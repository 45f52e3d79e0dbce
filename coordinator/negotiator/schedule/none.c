/*
 * none.c - the negotiator without a cached schedule: every launch is negotiated.
 *
 * Compiled in place of the other files of this folder where the option DP_WITH_SCHEDULE is off. All
 * ranks of a job must be built alike: a rank that is sent a schedule ends the world with a text
 * that says so. The hooks of schedule.h call it as they would call those files.
 */
#include "coordinator/negotiator/negotiator_internal.h"

dp_status_t dp_schedule_init(dp_negotiator_t *n, const dp_negotiator_options_t *options)
{
    (void)n;
    (void)options;
    return DP_OK;
}

void dp_schedule_fini(dp_negotiator_t *n)
{
    (void)n;
}

size_t dp_schedule_entry_bytes(void)
{
    return 0;
}

int dp_catch_up_has_early(const dp_negotiator_t *n, const dp_group_view_t *view)
{
    (void)n;
    (void)view;
    return 0;
}

int dp_catch_up_has_own(const dp_negotiator_t *n)
{
    (void)n;
    return 0;
}

int dp_catch_up_is_unsettled(const dp_entry_t *entry)
{
    (void)entry;
    return 0;
}

int dp_schedule_can_be_ahead(const dp_negotiator_t *n, uint64_t ahead)
{
    (void)n;
    return ahead == 0;
}

void dp_schedule_check_fit(dp_negotiator_t *n, dp_entry_t *entry)
{
    (void)n;
    (void)entry;
}

int dp_catch_up_stand_in(const dp_negotiator_t *n, const dp_entry_t *entry, dp_arrival_t *arrival,
                         uint64_t *since_ns)
{
    (void)n;
    (void)entry;
    (void)arrival;
    (void)since_ns;
    return 0;
}

void dp_catch_up_launch(dp_negotiator_t *n)
{
    (void)n;
}

int dp_catch_up_agreed(dp_negotiator_t *n, dp_entry_t *entry, uint32_t absent)
{
    (void)n;
    (void)entry;
    (void)absent;
    return 0;
}

void dp_catch_up_failed(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status, const char *text)
{
    (void)n;
    (void)entry;
    (void)status;
    (void)text;
}

void dp_catch_up_defer(dp_negotiator_t *n, uint64_t behind)
{
    (void)n;
    (void)behind;
}

int dp_catch_up_must_wait(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    (void)n;
    (void)entry;
    return 0;
}

int dp_catch_up_has_floors(const dp_negotiator_t *n)
{
    (void)n;
    return 0;
}

uint64_t dp_schedule_floor(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    (void)n;
    (void)entry;
    return 0;
}

void dp_schedule_raise_floor(dp_negotiator_t *n, const dp_entry_t *entry, uint64_t floor)
{
    (void)n;
    (void)entry;
    (void)floor;
}

void dp_detect_note_order(dp_negotiator_t *n, dp_entry_t *entry,
                          const dp_launch_entry_t *launch_entry, int is_first)
{
    (void)n;
    (void)entry;
    (void)launch_entry;
    (void)is_first;
}

void dp_schedule_group_ended(dp_negotiator_t *n)
{
    (void)n;
}

/* Not reached: the caller refuses these while no schedule is active. */
void dp_schedule_from_child(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    (void)child;
    dp_fatal_protocol(n, from, "item %d, and this rank is built without schedules", item->kind);
}

void dp_schedule_from_parent(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_fatal_protocol(n, from, "item %d, and this rank is built without schedules", item->kind);
}

void dp_schedule_turn(dp_negotiator_t *n, int from, const dp_item_t *item, dp_reader_t *reader,
                      size_t begin)
{
    (void)reader;
    (void)begin;
    dp_fatal_protocol(n, from, "item %d, and this rank is built without schedules", item->kind);
}

/* A rank that is built like this one never sends it; from any other it means nothing here. */
void dp_schedule_give_up(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry)
{
    (void)n;
    (void)rank;
    (void)position;
    (void)entry;
}

void dp_schedule_leave(dp_negotiator_t *n, dp_schedule_end_reason_t reason, int rank,
                       const char *text)
{
    (void)n;
    (void)reason;
    (void)rank;
    (void)text;
}

void dp_schedule_note_waiter(dp_negotiator_t *n)
{
    (void)n;
}

void dp_detect_end_round(dp_negotiator_t *n)
{
    (void)n;
}

void dp_schedule_check_time(dp_negotiator_t *n)
{
    (void)n;
}

uint64_t dp_schedule_next_check(const dp_negotiator_t *n)
{
    (void)n;
    return UINT64_MAX;
}

void dp_catch_up_check_time(dp_negotiator_t *n)
{
    (void)n;
}

uint64_t dp_catch_up_next_check(const dp_negotiator_t *n)
{
    (void)n;
    return UINT64_MAX;
}

void dp_resume_order(dp_negotiator_t *n)
{
    (void)n;
}

void dp_detect_order(dp_negotiator_t *n)
{
    (void)n;
}

void dp_schedule_launch_due(dp_negotiator_t *n)
{
    (void)n;
}

void dp_schedule_send_due(dp_negotiator_t *n)
{
    (void)n;
}
