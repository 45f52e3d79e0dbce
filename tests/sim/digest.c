/*
 * digest.c - hashes what a world's future depends on, and what its checks remember of the past.
 *
 * Looks inside the negotiators: two states that differ in any field a rule reads must differ here.
 * Addresses and the order of the hash table must not matter. Time stands still in the explorer.
 */
#include "digest.h"

#include "coordinator/negotiator/negotiator_internal.h"

#include <string.h>

static uint64_t mix(uint64_t digest, uint64_t value)
{
    digest = (digest ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return digest ^ digest >> 29;
}

static uint64_t mix_bytes(uint64_t digest, const void *data, size_t bytes)
{
    const unsigned char *at = data;

    for (size_t i = 0; i < bytes; i++)
        digest = mix(digest, at[i]);
    return mix(digest, bytes);
}

static uint64_t mix_signature(uint64_t digest, const dp_signature_t *signature)
{
    if (signature == NULL) return mix(digest, 0);
    if (signature->part_count > 0) digest = mix(digest, signature->parts[0].count);
    for (uint32_t i = 0; i < signature->member_count; i++)
        digest = mix(digest, (uint64_t)signature->members[i] + 1);
    return mix(digest, (uint64_t)signature->collective + 1);
}

/* Rounds that all tensors of a kept plan have come through: only what is above matters. */
static uint64_t fewest_kept(const dp_negotiator_t *n)
{
    uint64_t fewest = UINT64_MAX;

    for (size_t i = 0; i < n->table.entry_count; i++) {
        const dp_entry_t *entry = n->table.entries[i];

        if (entry->resume_uses > 0)
            fewest = dp_min(fewest, entry->resume_launches / entry->resume_uses);
    }
    return fewest;
}

static uint64_t digest_entry(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    uint64_t digest = mix(entry->hash, entry->id);

    digest = mix(digest, entry->version);
    digest = mix_signature(digest, entry->signature);
    digest = mix(digest, entry->done_position);
    digest = mix(digest, (uint64_t)(entry->ended_in_failure | entry->is_kept << 1));
    for (int i = 0; entry->ended != NULL && i < n->child_count; i++)
        digest = mix(digest, entry->ended[i]);
    for (uint32_t i = 0; i < entry->list_count; i++)
        digest = mix(digest, (uint64_t)entry->list[i] + 1);
    digest = mix(digest, (uint64_t)entry->absent << 32 | (uint32_t)entry->absent_rank);
    digest = mix(digest, entry->keep_position);
    digest = mix(digest, (uint64_t)entry->closed_by);
    for (const dp_refusal_t *refusal = entry->refusals; refusal != NULL; refusal = refusal->next)
        digest = mix_bytes(digest, refusal->text, strlen(refusal->text));
    digest =
        mix(digest,
            (uint64_t)(entry->is_pending | entry->is_own << 1 | entry->is_complete << 2 |
                       entry->in_place << 3 | entry->is_urgent << 4 | entry->is_mismatched << 5 |
                       entry->is_announced << 6 | entry->urgent_sent << 7 | entry->has_news << 8));
    digest =
        mix(digest, (uint64_t)entry->is_early | (uint64_t)entry->is_restarting << 1 |
                        (uint64_t)entry->own.is_there << 2 | (uint64_t)entry->own.fits << 3 |
                        (uint64_t)entry->own.is_urgent << 4 | (uint64_t)entry->own.in_place << 5 |
                        (uint64_t)entry->unsettled << 8 | (uint64_t)entry->plan_uses << 32);
    digest = mix_signature(digest, entry->own.signature);
    digest = mix_bytes(digest, &entry->own.absmax, sizeof(entry->own.absmax));
    digest = mix(digest, entry->last_launch);
    if (n->schedule.is_resumable) {
        digest = mix(digest, entry->resume_uses);
        digest = mix(digest, entry->resume_launches - fewest_kept(n) * entry->resume_uses);
    }
    digest = mix(digest, entry->ahead);
    digest = mix(digest, entry->ready);
    digest = mix_bytes(digest, &entry->absmax, sizeof(entry->absmax));
    digest = mix(digest, (uint64_t)entry->first_rank);
    digest = mix_signature(digest, entry->proposed);
    if (entry->conflict != NULL) {
        digest = mix(digest,
                     (uint64_t)entry->conflict->rank[0] << 32 | (uint32_t)entry->conflict->rank[1]);
        digest = mix_signature(digest, entry->conflict->signature[0]);
        digest = mix_signature(digest, entry->conflict->signature[1]);
    }
    for (const dp_contest_t *contest = entry->contests; contest != NULL; contest = contest->next) {
        digest = mix(digest, (uint64_t)contest->kind << 32 | (uint32_t)contest->branch);
        digest = mix_signature(digest, contest->signature[0]);
        digest = mix_signature(digest, contest->signature[1]);
    }
    digest = mix(digest, (uint64_t)(entry->said_ready | entry->conflict_sent << 1));
    return mix(digest, entry->heard[0]);
}

static uint64_t digest_view(const dp_group_view_t *view)
{
    uint64_t digest = mix(view->uid, view->slot);

    digest =
        mix(digest, (uint64_t)view->is_closed | (uint64_t)view->has_join << 1 |
                        (uint64_t)(view->ending != NULL) << 2 | (uint64_t)view->is_join_due << 3);
    digest = mix(digest, (uint64_t)view->closed_rank);
    digest = mix(digest, view->closed_position);
    digest = mix(digest, view->own_pending);
    digest = mix(digest, (uint64_t)view->last_joined << 1 | (uint64_t)view->is_join_said);
    return mix(digest, view->joined[0]);
}

static uint64_t digest_schedule(uint64_t digest, const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = &n->schedule;

    digest =
        mix(digest,
            (uint64_t)n->epoch | (uint64_t)schedule->is_active << 32 |
                (uint64_t)schedule->is_paused << 33 | (uint64_t)schedule->has_reason << 34 |
                (uint64_t)schedule->is_reason_sent << 35 |
                (uint64_t)schedule->is_reached_sent << 36 | (uint64_t)schedule->is_declared << 37 |
                (uint64_t)schedule->is_due << 38 | (uint64_t)(schedule->waited_ns != 0) << 39 |
                (uint64_t)(schedule->voided_ns != 0) << 40 | (uint64_t)schedule->has_warned << 41 |
                (uint64_t)schedule->is_whole << 42 | (uint64_t)schedule->is_resumable << 43);
    if (schedule->has_reason && schedule->is_active)
        digest = mix(digest, (uint64_t)schedule->reason << 32 | (uint32_t)schedule->reason_rank);
    digest = mix(digest, schedule->base);
    digest = mix(digest, schedule->step);
    digest = mix(digest, schedule->launched);
    digest = mix(digest, schedule->confirmed);
    digest = mix(digest, schedule->counts_sent);
    digest = mix(digest, (uint64_t)schedule->slowest);
    for (int i = 0; i < n->child_count && schedule->is_active; i++)
        digest = mix(digest, schedule->child_rounds[i]);
    if (schedule->is_paused) {
        digest = mix(digest, (uint64_t)schedule->children_awaited);
        digest = mix(digest, schedule->low);
        digest = mix(digest, schedule->high);
    }
    digest = mix(digest, schedule->unsettled);
    digest = mix(digest, schedule->ahead);
    for (int i = 0; schedule->floors != NULL && i < n->size; i++)
        digest = mix(digest, schedule->floors[i]);
    digest = mix(digest, schedule->occurrences_done);
    for (size_t i = 0; i < schedule->occurrence_count; i++) {
        digest = mix(digest, (uint64_t)schedule->occurrences[i].is_settled << 1 |
                                 (uint64_t)schedule->occurrences[i].is_launched << 2 |
                                 (uint64_t)schedule->occurrences[i].is_void << 3 |
                                 (uint64_t)schedule->occurrences[i].absent << 8);
        digest =
            mix(digest, schedule->occurrences[i].bucket + schedule->occurrences[i].entry->hash);
    }
    for (size_t i = 0; i < schedule->history_count; i++)
        digest =
            mix(digest, schedule->history[i].entry->hash + (uint64_t)schedule->history[i].is_first);
    digest = mix(digest, (uint64_t)schedule->rounds_needed << 32 | schedule->declared);
    digest = mix(digest, (uint64_t)schedule->rounds_cut);
    digest = mix(digest, schedule->period << 16 | schedule->repeat);
    for (size_t i = 0; i < n->restarts.count; i++)
        digest = mix(digest, n->restarts.entries[i]->hash);
    for (size_t i = 0; i < n->deferred_count; i++)
        digest = mix(digest, n->deferred[i].sequence + n->deferred[i].behind);
    return digest;
}

static uint64_t digest_negotiator(const dp_negotiator_t *n)
{
    uint64_t digest = 1, entries = 0;

    /* Not in the order of first sight, which no rule looks at. */
    for (size_t i = 0; i < n->table.entry_count; i++)
        entries += digest_entry(n, n->table.entries[i]);
    digest = mix(digest, digest_view(n->world));
    for (size_t i = 0; i < n->group_count; i++)
        digest = mix(digest, digest_view(n->groups[i]));
    digest = mix(digest, (uint64_t)n->last_uid << 32 | n->table.next_id);
    digest = mix(digest, n->left[0]);
    for (size_t i = 0; i < n->notice_count; i++) {
        const dp_notice_t *notice = &n->notices[i];

        digest = mix(digest, (uint64_t)notice->kind << 32 | (uint32_t)notice->rank);
        digest = mix(digest, notice->group + (notice->entry != NULL ? notice->entry->hash : 0));
        digest = mix(digest, notice->position);
    }
    for (size_t i = 0; i < n->foreign.count; i++)
        digest = mix(digest, n->foreign.entries[i]->hash);
    for (uint32_t i = 1; i <= 8; i++)
        digest = mix(digest, n->is_slot_taken[i]);
    digest = mix(digest, entries);
    digest = digest_schedule(digest, n);
    digest = mix(digest, n->position);
    digest = mix(digest, n->sequence);
    digest = mix(digest, n->launched);
    digest = mix(digest, n->launching);
    digest = mix(digest, n->own_pending);
    digest =
        mix(digest, (uint64_t)(n->is_finalizing | n->has_left << 1 | n->fin_sent << 5 |
                               n->is_finished << 6 | n->is_fatal << 7 | n->complete_urgent << 8));
    digest = mix(digest, n->fins[0]);
    digest = mix(digest, n->keeps);
    for (size_t i = 0; i < n->kept_count; i++)
        digest = mix(digest, n->kept[i].entry->hash + (uint64_t)n->kept[i].rank);
    for (size_t i = 0; i < n->complete.count; i++)
        digest = mix(digest, n->complete.entries[i]->hash);
    for (size_t i = 0; i < n->news.count; i++)
        digest = mix(digest, n->news.entries[i]->hash);
    for (int i = 0; i < n->child_count; i++)
        digest = mix(digest, n->child_position[i]);
    /* Outputs that were not taken yet. */
    for (const dp_out_frame_t *frame = n->frames; frame != NULL; frame = frame->next) {
        digest = mix(digest, (uint64_t)frame->target << 32 | (uint32_t)frame->cursor);
        if (frame->target == DP_TO_CHILDREN) digest = mix(digest, frame->children[0]);
        digest = mix_bytes(digest, frame->data, frame->bytes);
    }
    if (n->up != NULL) digest = mix_bytes(digest, n->up->data, n->up->bytes);
    if (n->down != NULL) {
        digest = mix_bytes(digest, n->down->data, n->down->bytes);
        digest = mix(digest, n->down->children[0]);
        digest = mix(digest, n->down_position);
    }
    for (size_t i = n->output_next; i < n->output_count; i++) {
        digest = mix(digest, n->outputs[i].kind);
        digest = mix(digest, n->outputs[i].sequence);
        digest = mix(digest, n->outputs[i].group);
        digest = mix(digest, n->outputs[i].entry_count);
        digest = mix(digest, n->outputs[i].status);
    }
    return digest;
}

static uint64_t digest_rank(const world_t *world, int rank)
{
    const world_rank_t *self = &world->ranks[rank];
    uint64_t digest = (uint64_t)(self->is_dead | self->is_finished << 1 | self->is_fatal << 2);

    for (int t = 0; t < world->options.tensors; t++) {
        digest =
            mix(digest, (uint64_t)self->submitted[t] << 1 | (uint64_t)self->requests[t].is_pending);
    }
    for (int i = 0; i < world->options.tensors * world->options.occurrences; i++)
        digest = mix(digest, self->skipped[i]);
    for (int g = 0; g < world->options.group_count; g++) {
        digest = mix(digest, (uint64_t)self->uids[g] << 2 | (uint64_t)self->alive[g] << 1 |
                                 (uint64_t)self->joins[g].is_pending);
    }
    for (int i = 0; i < world->options.tensors * world->options.occurrences; i++) {
        const world_flight_t *flight = &self->flights[i];

        digest = mix(digest, (uint64_t)flight->is_flying | (uint64_t)flight->is_over << 1 |
                                 (uint64_t)flight->is_settled << 2 |
                                 (uint64_t)flight->has_supplied << 3);
    }
    digest = mix(digest, self->held_from);
    digest = mix(digest, self->held_until);
    digest = mix(digest, self->identity_count);
    digest = mix(digest, self->launches);
    for (size_t i = 0; i < self->order_count; i++)
        digest = mix(digest, self->order[i]);
    digest = mix(digest, (uint64_t)self->failures);
    if (self->is_fatal) digest = mix_bytes(digest, self->fatal_text, strlen(self->fatal_text));
    if (self->is_dead) return digest;
    return mix(digest, digest_negotiator(self->negotiator));
}

uint64_t world_digest(const world_t *world)
{
    uint64_t digest = 7;

    for (int i = 0; i < world->options.size; i++)
        digest = mix(digest, digest_rank(world, i));
    for (int i = 0; i < world->edge_count; i++) {
        const world_message_t *message = world->edges[i].first;

        digest = mix(digest, (uint64_t)i);
        for (; message != NULL; message = message->next) {
            digest = mix(digest, (uint64_t)message->is_loss);
            digest = mix_bytes(digest, message->data, message->bytes);
        }
    }
    for (int i = 0; i < world->options.tensors * world->options.occurrences; i++) {
        const world_outcome_t *outcome = &world->outcomes[i];

        digest = mix(digest, outcome->is_placed ? outcome->sequence + 2 : 1);
        digest = mix(digest, (uint64_t)outcome->is_known);
        digest = mix(digest, outcome->status);
    }
    return digest;
}
