/*
 * digest.c - hashes what a world's future depends on, and what its checks remember of the past.
 *
 * Looks inside the negotiators: two states that differ in any field a rule reads must differ here.
 * Addresses and the order of the hash table must not matter. Time stands still in the explorer.
 */
#include "digest.h"

#include <string.h>

#include "coordinator/negotiator/state.h"

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

static uint64_t digest_entry(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    uint64_t digest = mix(entry->hash, entry->id);

    digest = mix(digest, entry->version);
    digest = mix_signature(digest, entry->signature);
    digest = mix(digest, entry->ended.position);
    digest = mix(digest, (uint64_t)(entry->ended.in_failure | entry->leave.is_kept << 1));
    for (int i = 0; entry->making.ended_for != NULL && i < n->child_count; i++)
        digest = mix(digest, entry->making.ended_for[i]);
    for (uint32_t i = 0; i < entry->making.list_count; i++)
        digest = mix(digest, (uint64_t)entry->making.list[i] + 1);
    digest =
        mix(digest, (uint64_t)entry->arrived.absent << 32 | (uint32_t)entry->arrived.absent_rank);
    digest = mix(digest, entry->leave.keep_position);
    digest = mix(digest, (uint64_t)entry->leave.closed_by);
    for (const dp_refusal_t *refusal = entry->ended.refusals; refusal != NULL;
         refusal = refusal->next)
        digest = mix_bytes(digest, refusal->text, strlen(refusal->text));
    digest =
        mix(digest, (uint64_t)(entry->is_pending | entry->part.is_submitted << 1 |
                               entry->arrived.is_complete << 2 | entry->arrived.in_place << 3 |
                               entry->arrived.is_urgent << 4 | entry->arrived.is_mismatched << 5 |
                               entry->sent.is_announced << 6 | entry->sent.is_urgent << 7 |
                               entry->sent.has_news << 8));
    digest =
        mix(digest, (uint64_t)entry->is_queued << 1 | (uint64_t)entry->own.is_there << 2 |
                        (uint64_t)entry->own.is_urgent << 4 | (uint64_t)entry->own.in_place << 5);
    digest = mix_signature(digest, entry->own.signature);
    digest = mix_bytes(digest, &entry->own.absmax, sizeof(entry->own.absmax));
    digest = mix(digest,
                 (uint64_t)(uint32_t)entry->own.priority << 32 | (uint32_t)entry->arrived.priority);
    digest = mix(digest, entry->arrived.ready);
    digest = mix_bytes(digest, &entry->arrived.absmax, sizeof(entry->arrived.absmax));
    digest = mix(digest, (uint64_t)entry->arrived.first_rank);
    digest = mix_signature(digest, entry->arrived.proposed);
    if (entry->arrived.conflict != NULL) {
        digest = mix(digest, (uint64_t)entry->arrived.conflict->rank[0] << 32 |
                                 (uint32_t)entry->arrived.conflict->rank[1]);
        digest = mix_signature(digest, entry->arrived.conflict->signature[0]);
        digest = mix_signature(digest, entry->arrived.conflict->signature[1]);
    }
    for (const dp_contest_t *contest = entry->making.contests; contest != NULL;
         contest = contest->next) {
        digest = mix(digest, (uint64_t)contest->kind << 32 | (uint32_t)contest->branch);
        digest = mix_signature(digest, contest->signature[0]);
        digest = mix_signature(digest, contest->signature[1]);
    }
    digest = mix(digest, (uint64_t)(entry->sent.is_ready | entry->sent.is_conflict << 1));
    return mix(digest, entry->heard[0]);
}

static uint64_t digest_view(const dp_group_view_t *view)
{
    uint64_t digest = mix(view->uid, view->group_index);

    digest =
        mix(digest, (uint64_t)view->is_closed | (uint64_t)view->has_join << 1 |
                        (uint64_t)(view->ending != NULL) << 2 | (uint64_t)view->is_join_due << 3);
    digest = mix(digest, (uint64_t)view->closed_rank);
    digest = mix(digest, view->closed_position);
    digest = mix(digest, view->own_pending);
    digest = mix(digest, (uint64_t)view->last_joined << 1 | (uint64_t)view->is_join_said);
    return mix(digest, view->joined[0]);
}

static uint64_t digest_negotiator(const dp_negotiator_t *n)
{
    uint64_t digest = 1, entries = 0;

    /* Not in the order of first sight, which no rule looks at. */
    for (size_t i = 0; i < n->table.entry_count; i++)
        entries += digest_entry(n, n->table.entries[i]);
    for (size_t i = 0; n->table.passing != NULL && i < n->table.names_kept; i++) {
        const size_t at = (n->table.passing_next + i) % n->table.names_kept;

        digest = mix(digest, n->table.passing[at] == NULL ? 0 : n->table.passing[at]->hash + 1);
    }
    digest = mix(digest, n->table.id_count); /* by which the root decides who gets an id */
    digest = mix(digest, digest_view(n->world));
    for (size_t i = 0; i < n->groups.count; i++)
        digest = mix(digest, digest_view(n->groups.views[i]));
    digest = mix(digest, (uint64_t)n->groups.last_uid << 32 | n->table.next_id);
    digest = mix(digest, n->leave.left[0]);
    for (size_t i = 0; i < n->out.notice_count; i++) {
        const dp_notice_t *notice = &n->out.notices[i];

        digest = mix(digest, (uint64_t)notice->kind << 32 | (uint32_t)notice->rank);
        digest = mix(digest, notice->group + (notice->entry != NULL ? notice->entry->hash : 0));
        digest = mix(digest, notice->position);
    }
    for (size_t i = 0; i < n->order.foreign.count; i++)
        digest = mix(digest, n->order.foreign.entries[i]->hash);
    for (int r = 0; n->order.indices != NULL && r < n->size; r++)
        digest = mix(digest, n->order.indices[r][0]); /* worlds here have few groups */
    digest = mix(digest, entries);
    for (size_t i = 0; i < n->own.queue.count; i++)
        digest = mix(digest, n->own.queue.entries[i]->hash);
    digest = mix(digest, n->position);
    digest = mix(digest, n->sequence);
    digest = mix(digest, n->order.done);
    digest = mix(digest, n->order.launching);
    digest = mix(digest, n->own.pending);
    digest = mix(digest, (uint64_t)(n->leave.is_finalizing | n->leave.has_left << 1 |
                                    n->leave.fin_sent << 5 | n->is_finished << 6 |
                                    n->is_fatal << 7 | n->order.is_urgent << 8));
    digest = mix(digest, n->leave.fins[0]);
    digest = mix(digest, n->leave.keeps);
    for (size_t i = 0; i < n->leave.kept_count; i++)
        digest = mix(digest, n->leave.kept[i].entry->hash + (uint64_t)n->leave.kept[i].rank);
    for (size_t i = 0; i < n->order.complete.count; i++)
        digest = mix(digest, n->order.complete.entries[i]->hash);
    for (size_t i = 0; i < n->out.news.count; i++)
        digest = mix(digest, n->out.news.entries[i]->hash);
    for (int i = 0; i < n->child_count; i++)
        digest = mix(digest, n->child_position[i]);
    /* Outputs that were not taken yet. */
    for (const dp_out_frame_t *frame = n->out.frames; frame != NULL; frame = frame->next) {
        digest = mix(digest, (uint64_t)frame->target << 32 | (uint32_t)frame->cursor);
        if (frame->target == DP_TO_CHILDREN) digest = mix(digest, frame->children[0]);
        digest = mix_bytes(digest, frame->data, frame->bytes);
    }
    if (n->out.up != NULL) digest = mix_bytes(digest, n->out.up->data, n->out.up->bytes);
    if (n->out.down != NULL) {
        digest = mix_bytes(digest, n->out.down->data, n->out.down->bytes);
        digest = mix(digest, n->out.down->children[0]);
        digest = mix(digest, n->out.down_position);
    }
    for (size_t i = n->out.output_next; i < n->out.output_count; i++) {
        digest = mix(digest, n->out.outputs[i].kind);
        digest = mix(digest, n->out.outputs[i].sequence);
        digest = mix(digest, n->out.outputs[i].group);
        digest = mix(digest, n->out.outputs[i].entry_count);
        digest = mix(digest, n->out.outputs[i].status);
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
