/*
 * catch_up.c - after a schedule has ended: the occurrences that some ranks had launched and others
 * not, and how they are negotiated late.
 *
 * SCHEDULE_END says how far the slowest and the fastest rank had come. Each occurrence between the
 * two is *unsettled*. It is negotiated by the ordinary rules: a rank that had launched it counts as
 * ready (an *early launch* stands for its submission), any other rank submits it when its program
 * does. The outcome, a launch or a failure, settles it on all ranks alike. Then the early ranks
 * report it as complete, and the others launch it late (late_launch.c). So no rank reports a result
 * that another one has not contributed to.
 *
 * Called through the hooks of schedule.h, on the thread that drives the negotiator. It must not
 * know how schedules are found or what is exchanged while one is active.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- What is unsettled ---------------------------------------------------------------------- */

static dp_schedule_bucket_t *bucket_of(dp_schedule_t *schedule, uint64_t number)
{
    return &schedule->buckets[number % schedule->bucket_count];
}

static dp_status_t reserve_occurrences(dp_catch_up_t *catch_up, size_t count)
{
    dp_occurrence_t *grown;

    if (count <= catch_up->room) return DP_OK;
    grown = realloc(catch_up->occurrences, count * sizeof(*grown));
    if (grown == NULL) return DP_ERR_NO_MEMORY;
    catch_up->occurrences = grown;
    catch_up->room = count;
    return DP_OK;
}

/* This rank has launched its buckets in order, so the number says whether it launched this one. */
static void add_occurrence(dp_schedule_t *schedule, const dp_planned_t *planned, uint64_t number,
                           int is_own)
{
    dp_catch_up_t *catch_up = &schedule->catch_up;
    dp_occurrence_t *occurrence = &catch_up->occurrences[catch_up->count++];

    memset(occurrence, 0, sizeof(*occurrence));
    occurrence->entry = planned->entry;
    occurrence->group = planned->entry->view->uid;
    occurrence->bucket = number;
    occurrence->is_own = is_own;
    occurrence->is_launched = !is_own || number < schedule->run.launched;
    occurrence->in_place = planned->in_place;
    occurrence->absmax = planned->absmax;
    if (!is_own) return;
    catch_up->early_count += (size_t)occurrence->is_launched;
    catch_up->late_count += (size_t)!occurrence->is_launched;
}

/* From the last to the first, so that each entry's chain begins with its oldest. */
static void link_occurrences(dp_catch_up_t *catch_up)
{
    for (size_t i = catch_up->count; i > 0; i--) {
        dp_occurrence_t *occurrence = &catch_up->occurrences[i - 1];

        occurrence->next_of_entry = occurrence->entry->schedule->occurrences;
        occurrence->entry->schedule->occurrences = occurrence;
    }
}

static void add_bucket(dp_negotiator_t *n, uint64_t number)
{
    dp_schedule_t *schedule = n->schedule;
    const dp_schedule_bucket_t *bucket = bucket_of(schedule, number);

    if (number / schedule->bucket_count >= bucket->rounds) return; /* no rank has launched it */
    for (size_t i = 0; i < bucket->count; i++) {
        const dp_planned_t *planned = &schedule->planned[bucket->begin + i];

        if (planned->entry == NULL) continue;
        planned->entry->schedule->unsettled++;
        schedule->catch_up.unsettled++;
        if (dp_entry_takes_part(n, planned->entry)) {
            add_occurrence(schedule, planned, number, 1);
        } else if (dp_is_root(n)) {
            add_occurrence(schedule, planned, number, 0);
        }
    }
}

/* The root: before the first launch of the epoch. */
static void reset_floors(dp_negotiator_t *n)
{
    dp_catch_up_t *catch_up = &n->schedule->catch_up;
    size_t bytes = (size_t)n->size * sizeof(*catch_up->floors);

    if (catch_up->floors == NULL) catch_up->floors = malloc(bytes);
    if (catch_up->floors == NULL) {
        dp_fatal_memory(n);
        return;
    }
    memset(catch_up->floors, 0, bytes);
}

static void reset_times(dp_negotiator_t *n)
{
    dp_catch_up_t *catch_up = &n->schedule->catch_up;

    catch_up->gave_up_ns = catch_up->has_warned = 0;
    catch_up->ended_ns = n->now_ns;
    if (n->schedule->stop.reason == DP_SCHEDULE_END_STALL) /* others have waited that long before */
        catch_up->ended_ns -= dp_min(n->now_ns, n->stall.warn_ns);
    if (catch_up->waited_ns != 0) catch_up->waited_ns = dp_max(n->now_ns, 1);
}

void dp_catch_up_begin(dp_negotiator_t *n, uint64_t low, uint64_t high)
{
    dp_schedule_t *schedule = n->schedule;
    dp_catch_up_t *catch_up = &schedule->catch_up;
    size_t count = 0;

    catch_up->count = catch_up->done = catch_up->early_count = catch_up->late_count = 0;
    catch_up->settled = 0;
    catch_up->end = high;
    n->marks.in_catch_up = 1; /* until dp_catch_up_launch() finds that nothing is left */
    reset_times(n);
    for (uint64_t number = low; number < high; number++)
        count += bucket_of(schedule, number)->count;
    if (reserve_occurrences(catch_up, count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    for (uint64_t number = low; number < high; number++)
        add_bucket(n, number);
    link_occurrences(catch_up);
    catch_up->ahead = schedule->run.launched > low ? schedule->run.launched : 0;
    if (dp_is_root(n)) reset_floors(n);
    for (size_t i = 0; i < n->table.entry_count && !n->is_fatal; i++)
        dp_own_queue(n, n->table.entries[i]);
}

void dp_catch_up_fini(dp_catch_up_t *catch_up)
{
    for (size_t i = 0; i < catch_up->count; i++)
        free(catch_up->occurrences[i].signature);
    free(catch_up->occurrences);
    free(catch_up->floors);
    free(catch_up->deferred);
    free(catch_up->deferred_entries);
}

/* ---- Arrivals ------------------------------------------------------------------------------- */

/* Where others are late a stall counts from the launch, elsewhere from the end of the schedule. */
static uint64_t early_since(const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = n->schedule;

    if (schedule->stop.reason != DP_SCHEDULE_END_STALL || schedule->run.unconfirmed_ns == 0)
        return n->now_ns;
    return dp_min(schedule->run.unconfirmed_ns, n->now_ns);
}

int dp_catch_up_stand_in(const dp_negotiator_t *n, const dp_entry_t *entry, dp_arrival_t *arrival,
                         uint64_t *since_ns)
{
    const dp_occurrence_t *occurrence = entry->schedule->occurrences;

    if (n->schedule->catch_up.unsettled > 0) arrival->ahead = n->schedule->catch_up.ahead;
    if (occurrence == NULL) return 0;
    arrival->is_urgent = 1; /* other ranks wait for it since the schedule has ended */
    if (!occurrence->is_own || !occurrence->is_launched) return 0;
    arrival->in_place = occurrence->in_place;
    arrival->absmax = occurrence->absmax;
    *since_ns = early_since(n);
    return 1;
}

/* ---- The root: floors ----------------------------------------------------------------------- */

/* The i-th rank that takes part in a tensor. */
static int participant_at(const dp_entry_t *entry, uint32_t i)
{
    if (entry->view == NULL) return entry->making.list[i];
    if (entry->root < 0) return dp_group_view_rank(entry->view, (int)i);
    return dp_group_view_rank(entry->view, i == 0 ? entry->root : entry->peer);
}

int dp_catch_up_has_floors(const dp_negotiator_t *n)
{
    return n->schedule->catch_up.unsettled > 0 || n->schedule->catch_up.late_count > 0;
}

uint64_t dp_schedule_floor(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    const dp_catch_up_t *catch_up = &n->schedule->catch_up;
    uint64_t floor = entry->arrived.ahead;

    for (uint32_t i = 0; catch_up->floors != NULL && i < dp_entry_ranks(entry); i++)
        floor = dp_max(floor, catch_up->floors[participant_at(entry, i)]);
    DP_ASSERT(floor <= catch_up->end); /* else a launch waits for what no rank will launch */
    return floor;
}

void dp_schedule_raise_floor(dp_negotiator_t *n, const dp_entry_t *entry, uint64_t floor)
{
    dp_catch_up_t *catch_up = &n->schedule->catch_up;

    for (uint32_t i = 0; catch_up->floors != NULL && i < dp_entry_ranks(entry); i++) {
        int rank = participant_at(entry, i);

        catch_up->floors[rank] = dp_max(catch_up->floors[rank], floor);
    }
}

int dp_schedule_can_be_ahead(const dp_negotiator_t *n, uint64_t ahead)
{
    return ahead <= n->schedule->catch_up.end;
}

/* ---- Settled -------------------------------------------------------------------------------- */

/* The root keeps occurrences of all ranks. */
static void note_settled(dp_negotiator_t *n, const dp_occurrence_t *occurrence)
{
    dp_catch_up_t *catch_up = &n->schedule->catch_up;

    dp_schedule_raise_floor(n, occurrence->entry, occurrence->bucket + 1);
    while (catch_up->settled < catch_up->count &&
           catch_up->occurrences[catch_up->settled].is_settled)
        catch_up->settled++;
}

/* NULL: this rank takes no part in it. */
static dp_occurrence_t *settle_oldest(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_occurrence_t *occurrence = entry->schedule->occurrences;

    entry->schedule->unsettled--;
    n->schedule->catch_up.unsettled--;
    if (occurrence == NULL) return NULL;
    entry->schedule->occurrences = occurrence->next_of_entry;
    occurrence->is_settled = 1;
    if (dp_is_root(n)) note_settled(n, occurrence);
    return occurrence->is_own ? occurrence : NULL;
}

static void report_settled(dp_negotiator_t *n, const dp_occurrence_t *occurrence, uint32_t absent,
                           dp_status_t status, const char *text)
{
    dp_own_output_t *output = dp_outbox_text_output(n, DP_OUTPUT_SETTLED, text);

    n->schedule->catch_up.early_count--;
    if (output == NULL) return;
    output->sequence = n->schedule->base + occurrence->bucket + 1;
    output->id = occurrence->entry->id;
    output->absent = absent;
    output->status = status;
}

int dp_catch_up_agreed(dp_negotiator_t *n, dp_entry_t *entry, uint32_t absent)
{
    dp_occurrence_t *occurrence;

    if (entry->schedule->unsettled == 0) return 0;
    occurrence = settle_oldest(n, entry);
    if (occurrence == NULL) return 1;
    if (occurrence->is_launched) {
        report_settled(n, occurrence, absent, DP_OK, "");
        return 1;
    }
    occurrence->request = entry->part.request;
    occurrence->absent = absent;
    occurrence->signature = dp_signature_copy(entry->signature);
    if (occurrence->signature == NULL) dp_fatal_memory(n);
    return 1;
}

/* The late ranks launch it all the same, without data: the early ones are in the data plane. All
 * use the signature that was agreed on before the schedule, as the early ranks did. */
void dp_catch_up_failed(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status, const char *text)
{
    dp_occurrence_t *occurrence;

    if (entry->schedule->unsettled == 0) return;
    occurrence = settle_oldest(n, entry);
    if (occurrence == NULL) return;
    if (occurrence->is_launched) {
        report_settled(n, occurrence, 0, status, text);
        return;
    }
    occurrence->is_void = 1;
    occurrence->signature = dp_signature_copy(entry->signature);
    if (occurrence->signature == NULL) dp_fatal_memory(n);
}
