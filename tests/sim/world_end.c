/*
 * world_end.c - what must hold of a simulated world when nothing can happen any more: joined
 * ranks were told of those that went without them, and no data plane waits for
 * ever. Called by the programs of this folder when their worlds have ended.
 */
#include "world.h"

#include <stdlib.h>

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count > 0 ? count : 1, bytes);

    if (memory == NULL) exit(2);
    return memory;
}

/* One step of all data planes; 0: there is none. at: [size] how far each rank has come; waits:
 * [launches] ranks that have a launch before them and have not come to it. */
static int carry_out(const world_t *world, size_t *at, uint32_t *waits)
{
    int did = 0;

    for (int r = 0; r < world->options.size; r++) {
        const world_rank_t *self = &world->ranks[r];

        while (at[r] < self->order_count && waits[self->order[at[r]]] == 0) {
            at[r]++;
            if (at[r] < self->order_count) waits[self->order[at[r]]]--;
            did = 1;
        }
    }
    return did;
}

void world_check_order(world_t *world)
{
    size_t *at = allocate((size_t)world->options.size, sizeof(*at));
    uint64_t last = 0;
    uint32_t *waits;

    for (int r = 0; r < world->options.size; r++)
        last = dp_max(last, world->ranks[r].launches);
    waits = allocate((size_t)last + 1, sizeof(*waits));
    for (int r = 0; r < world->options.size; r++) {
        const world_rank_t *self = &world->ranks[r];

        for (size_t i = 1; i < self->order_count; i++)
            waits[self->order[i]]++;
    }
    while (carry_out(world, at, waits))
        continue;
    for (int r = 0; r < world->options.size; r++) {
        const world_rank_t *self = &world->ranks[r];

        if (at[r] < self->order_count)
            world_violation(world, "rank %d: launch %llu is never over, others do another first", r,
                            (unsigned long long)self->order[at[r]]);
    }
    free(waits);
    free(at);
}

void world_check_identities(world_t *world)
{
    int occurrences = world->options.occurrences;

    for (int r = 0; r < world->options.size; r++) {
        world_rank_t *self = &world->ranks[r];
        size_t expected = 0;

        for (int i = 0; i < world->options.tensors * occurrences; i++) {
            const world_outcome_t *outcome = &world->outcomes[i];

            expected += self->skipped[i] && outcome->is_known && outcome->status == DP_OK;
        }
        if (expected != self->identity_count)
            world_violation(world, "rank %d gave the identity %zu times, %zu launches needed it", r,
                            self->identity_count, expected);
        for (size_t i = 0; i < self->identity_count; i++) {
            const world_identity_t *identity = &self->identities[i];
            int found = 0;

            for (int o = 0; o < occurrences; o++) {
                const world_outcome_t *outcome =
                    &world->outcomes[identity->tensor * occurrences + o];

                found |= self->skipped[identity->tensor * occurrences + o] && outcome->is_known &&
                         outcome->sequence == identity->place;
            }
            if (!found)
                world_violation(world, "rank %d: tensor %d was launched elsewhere otherwise", r,
                                identity->tensor);
        }
    }
}

uint64_t world_ranks_below(const world_t *world, int edge)
{
    int top = dp_max(world->edges[edge].from, world->edges[edge].to);
    uint64_t ranks = 0;

    for (int rank = top; rank < world->options.size; rank++) {
        int at = rank;

        while (at > top)
            at = world->ranks[at].links.parent;
        ranks += at == top;
    }
    return ranks;
}
