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

    for (size_t i = 0; i < n->table.row_count; i++) {
        const dp_row_t *row = n->table.rows[i];

        if (row->kept_uses > 0) fewest = dp_min(fewest, row->kept_launches / row->kept_uses);
    }
    return fewest;
}

static uint64_t digest_row(const dp_negotiator_t *n, const dp_row_t *row)
{
    uint64_t digest = mix(row->hash, row->id);

    digest = mix(digest, row->version);
    digest = mix_signature(digest, row->signature);
    digest = mix(digest, row->done_position);
    digest = mix(digest, (uint64_t)(row->ended_in_failure | row->is_kept << 1));
    for (int i = 0; row->ended != NULL && i < n->child_count; i++)
        digest = mix(digest, row->ended[i]);
    for (uint32_t i = 0; i < row->list_count; i++)
        digest = mix(digest, (uint64_t)row->list[i] + 1);
    digest = mix(digest, (uint64_t)row->absent << 32 | (uint32_t)row->absent_rank);
    digest = mix(digest, row->keep_position);
    digest = mix(digest, (uint64_t)row->closed_by);
    for (const dp_refusal_t *refusal = row->refusals; refusal != NULL; refusal = refusal->next)
        digest = mix_bytes(digest, refusal->text, strlen(refusal->text));
    digest = mix(digest,
                 (uint64_t)(row->is_pending | row->is_own << 1 | row->is_complete << 2 |
                            row->in_place << 3 | row->is_urgent << 4 | row->is_mismatched << 5 |
                            row->is_announced << 6 | row->urgent_sent << 7 | row->has_news << 8));
    digest = mix(digest, (uint64_t)row->is_shadow | (uint64_t)row->is_restarting << 1 |
                             (uint64_t)row->own.is_there << 2 | (uint64_t)row->own.fits << 3 |
                             (uint64_t)row->own.is_urgent << 4 | (uint64_t)row->own.in_place << 5 |
                             (uint64_t)row->owed_left << 8 | (uint64_t)row->plan_uses << 32);
    digest = mix_signature(digest, row->own.signature);
    digest = mix_bytes(digest, &row->own.absmax, sizeof(row->own.absmax));
    digest = mix(digest, row->past);
    if (n->lock.is_kept) {
        digest = mix(digest, row->kept_uses);
        digest = mix(digest, row->kept_launches - fewest_kept(n) * row->kept_uses);
    }
    digest = mix(digest, row->ahead);
    digest = mix(digest, row->ready);
    digest = mix_bytes(digest, &row->absmax, sizeof(row->absmax));
    digest = mix(digest, (uint64_t)row->first_rank);
    digest = mix_signature(digest, row->proposed);
    if (row->conflict != NULL) {
        digest =
            mix(digest, (uint64_t)row->conflict->rank[0] << 32 | (uint32_t)row->conflict->rank[1]);
        digest = mix_signature(digest, row->conflict->signature[0]);
        digest = mix_signature(digest, row->conflict->signature[1]);
    }
    for (const dp_contest_t *contest = row->contests; contest != NULL; contest = contest->next) {
        digest = mix(digest, (uint64_t)contest->kind << 32 | (uint32_t)contest->slot);
        digest = mix_signature(digest, contest->signature[0]);
        digest = mix_signature(digest, contest->signature[1]);
    }
    digest = mix(digest, (uint64_t)(row->said_ready | row->conflict_sent << 1));
    return mix(digest, row->heard[0]);
}

static uint64_t digest_scope(const dp_scope_t *scope)
{
    uint64_t digest = mix(scope->uid, scope->slot_number);

    digest =
        mix(digest, (uint64_t)scope->is_closed | (uint64_t)scope->has_join << 1 |
                        (uint64_t)(scope->ending != NULL) << 2 | (uint64_t)scope->is_join_due << 3);
    digest = mix(digest, (uint64_t)scope->closed_rank);
    digest = mix(digest, scope->closed_position);
    digest = mix(digest, scope->own_pending);
    digest = mix(digest, (uint64_t)scope->last_joined << 1 | (uint64_t)scope->is_join_said);
    return mix(digest, scope->joined[0]);
}

static uint64_t digest_lock(uint64_t digest, const dp_negotiator_t *n)
{
    const dp_lock_t *lock = &n->lock;

    digest =
        mix(digest, (uint64_t)n->epoch | (uint64_t)lock->is_scheduled << 32 |
                        (uint64_t)lock->is_held << 33 | (uint64_t)lock->has_reason << 34 |
                        (uint64_t)lock->is_reason_said << 35 | (uint64_t)lock->is_stand_said << 36 |
                        (uint64_t)lock->is_declared << 37 | (uint64_t)lock->is_due << 38 |
                        (uint64_t)(lock->waited_ns != 0) << 39 |
                        (uint64_t)(lock->voided_ns != 0) << 40 | (uint64_t)lock->has_warned << 41 |
                        (uint64_t)lock->is_whole << 42 | (uint64_t)lock->is_kept << 43);
    if (lock->has_reason && lock->is_scheduled)
        digest = mix(digest, (uint64_t)lock->reason << 32 | (uint32_t)lock->reason_rank);
    digest = mix(digest, lock->base);
    digest = mix(digest, lock->step);
    digest = mix(digest, lock->launched);
    digest = mix(digest, lock->confirmed);
    digest = mix(digest, lock->said);
    digest = mix(digest, (uint64_t)lock->laggard);
    for (int i = 0; i < n->child_count && lock->is_scheduled; i++)
        digest = mix(digest, lock->child_rounds[i]);
    if (lock->is_held) {
        digest = mix(digest, (uint64_t)lock->waiting);
        digest = mix(digest, lock->low);
        digest = mix(digest, lock->high);
    }
    digest = mix(digest, lock->open);
    digest = mix(digest, lock->ahead);
    for (int i = 0; lock->floor != NULL && i < n->size; i++)
        digest = mix(digest, lock->floor[i]);
    digest = mix(digest, lock->owed_paid);
    for (size_t i = 0; i < lock->owed_count; i++) {
        digest = mix(digest, (uint64_t)lock->owed[i].is_settled << 1 |
                                 (uint64_t)lock->owed[i].is_launched << 2 |
                                 (uint64_t)lock->owed[i].is_void << 3 |
                                 (uint64_t)lock->owed[i].absent << 8);
        digest = mix(digest, lock->owed[i].bucket + lock->owed[i].row->hash);
    }
    for (size_t i = 0; i < lock->past_count; i++)
        digest = mix(digest, lock->past[i].row->hash + (uint64_t)lock->past[i].is_first);
    digest = mix(digest, (uint64_t)lock->need << 32 | lock->declared);
    digest = mix(digest, (uint64_t)lock->torn);
    digest = mix(digest, lock->period << 16 | lock->repeat);
    for (size_t i = 0; i < n->restarts.count; i++)
        digest = mix(digest, n->restarts.rows[i]->hash);
    for (size_t i = 0; i < n->deferred_count; i++)
        digest = mix(digest, n->deferred[i].sequence + n->deferred[i].behind);
    return digest;
}

static uint64_t digest_negotiator(const dp_negotiator_t *n)
{
    uint64_t digest = 1, rows = 0;

    /* Not in the order of first sight, which no rule looks at. */
    for (size_t i = 0; i < n->table.row_count; i++)
        rows += digest_row(n, n->table.rows[i]);
    digest = mix(digest, digest_scope(n->world));
    for (size_t i = 0; i < n->group_count; i++)
        digest = mix(digest, digest_scope(n->groups[i]));
    digest = mix(digest, (uint64_t)n->last_uid << 32 | n->table.next_id);
    digest = mix(digest, n->left[0]);
    for (size_t i = 0; i < n->word_count; i++) {
        const dp_word_t *word = &n->words[i];

        digest = mix(digest, (uint64_t)word->kind << 32 | (uint32_t)word->rank);
        digest = mix(digest, word->group + (word->row != NULL ? word->row->hash : 0));
        digest = mix(digest, word->position);
    }
    for (size_t i = 0; i < n->foreign.count; i++)
        digest = mix(digest, n->foreign.rows[i]->hash);
    for (uint32_t i = 1; i <= 8; i++)
        digest = mix(digest, n->is_slot_taken[i]);
    digest = mix(digest, rows);
    digest = digest_lock(digest, n);
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
        digest = mix(digest, n->kept[i].row->hash + (uint64_t)n->kept[i].rank);
    for (size_t i = 0; i < n->complete.count; i++)
        digest = mix(digest, n->complete.rows[i]->hash);
    for (size_t i = 0; i < n->news.count; i++)
        digest = mix(digest, n->news.rows[i]->hash);
    for (int i = 0; i < n->child_count; i++)
        digest = mix(digest, n->child_position[i]);
    /* Outputs that were not taken yet. */
    for (const dp_frame_t *frame = n->frames; frame != NULL; frame = frame->next) {
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
    for (size_t i = n->event_next; i < n->event_count; i++) {
        digest = mix(digest, n->events[i].kind);
        digest = mix(digest, n->events[i].sequence);
        digest = mix(digest, n->events[i].group);
        digest = mix(digest, n->events[i].entry_count);
        digest = mix(digest, n->events[i].status);
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
