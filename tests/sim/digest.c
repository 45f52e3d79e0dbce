/*
 * digest.c - hashes what a world's future depends on, and what its checks remember of the past.
 *
 * Looks inside the negotiators: two states that differ in any field a rule reads must differ here.
 * Addresses and the order of the hash table must not matter. Time stands still in the explorer.
 */
#include "digest.h"

#include "coordinator/negotiator_internal.h"

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
    return mix(digest, signature != NULL ? signature->parts[0].count + 1 : 0);
}

static uint64_t digest_row(const dp_row_t *row)
{
    uint64_t digest = mix(row->hash, row->id);

    digest = mix(digest, row->version);
    digest = mix_signature(digest, row->signature);
    digest = mix(digest, row->done_position);
    digest =
        mix(digest, (uint64_t)(row->ended_in_failure | row->is_kept << 1 | row->is_offered << 2));
    digest = mix(digest, row->keep_position);
    digest = mix(digest, (uint64_t)row->closed_by);
    for (const dp_refusal_t *refusal = row->refusals; refusal != NULL; refusal = refusal->next)
        digest = mix_bytes(digest, refusal->text, strlen(refusal->text));
    digest = mix(digest,
                 (uint64_t)(row->is_pending | row->is_own << 1 | row->is_complete << 2 |
                            row->in_place << 3 | row->is_urgent << 4 | row->is_mismatched << 5 |
                            row->is_announced << 6 | row->urgent_sent << 7 | row->has_news << 8));
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
    return mix(digest, row->heard[0]);
}

static uint64_t digest_negotiator(const dp_negotiator_t *n)
{
    uint64_t digest = 1, rows = 0;

    /* Not in the order of first sight, which no rule looks at. */
    for (size_t i = 0; i < n->table.row_count; i++)
        rows += digest_row(n->table.rows[i]);
    digest = mix(digest, rows);
    digest = mix(digest, n->position);
    digest = mix(digest, n->sequence);
    digest = mix(digest, n->launched);
    digest = mix(digest, n->own_pending);
    digest = mix(digest, (uint64_t)(n->is_finalizing | n->has_left << 1 | n->has_leaver << 2 |
                                    n->is_closed << 4 | n->fin_sent << 5 | n->is_finished << 6 |
                                    n->is_fatal << 7 | n->complete_urgent << 8));
    digest = mix(digest, n->fins[0]);
    digest = mix(digest, (uint64_t)n->closed_rank);
    digest = mix(digest, n->keeps);
    for (size_t i = 0; i < n->kept_count; i++)
        digest = mix(digest, n->kept[i].row->hash + (uint64_t)n->kept[i].rank);
    digest = mix(digest, n->closed_position);
    for (size_t i = 0; i < n->complete.count; i++)
        digest = mix(digest, n->complete.rows[i]->hash);
    for (size_t i = 0; i < n->news.count; i++)
        digest = mix(digest, n->news.rows[i]->hash);
    for (int i = 0; i < n->child_count; i++)
        digest = mix(digest, n->child_position[i]);
    /* Outputs that were not taken yet. */
    for (const dp_frame_t *frame = n->frames; frame != NULL; frame = frame->next) {
        digest = mix(digest, (uint64_t)frame->target << 32 | (uint32_t)frame->cursor);
        digest = mix_bytes(digest, frame->data, frame->bytes);
    }
    if (n->up != NULL) digest = mix_bytes(digest, n->up->data, n->up->bytes);
    if (n->down != NULL) digest = mix_bytes(digest, n->down->data, n->down->bytes);
    for (size_t i = n->event_next; i < n->event_count; i++) {
        digest = mix(digest, n->events[i].kind);
        digest = mix(digest, n->events[i].sequence);
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
    digest = mix(digest, self->launches);
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

        digest = mix(digest, outcome->is_known ? outcome->sequence + 2 : 1);
        digest = mix(digest, outcome->status);
    }
    return digest;
}
