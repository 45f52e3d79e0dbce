/*
 * script.c - plans what the ranks of a simulated world do.
 */
#include "script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

#define GROUPS_MAX 7
#define PHASES_MAX 4
#define TENSORS_PER_GROUP_MAX 5
#define SEVERAL (-2)

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count > 0 ? count : 1, bytes);

    if (memory == NULL) exit(2);
    return memory;
}

static int is_member(const script_t *script, int group, int rank)
{
    if (group == 0) return 1;
    for (int i = 0; i < script->groups[group].count; i++) {
        if (script->groups[group].ranks[i] == rank) return 1;
    }
    return 0;
}

static int size_of(const script_t *script, int group)
{
    return group == 0 ? script->options.size : script->groups[group].count;
}

static int takes_part(const script_t *script, int tensor, int rank)
{
    const world_tensor_t *kind = &script->kinds[tensor];
    const world_group_t *group = &script->groups[kind->group];

    if (kind->collective != DP_COLLECTIVE_SEND) return is_member(script, kind->group, rank);
    if (kind->group == 0) return rank == kind->root || rank == kind->peer;
    return rank == group->ranks[kind->root] || rank == group->ranks[kind->peer];
}

/* ---- Groups and tensors --------------------------------------------------------------------- */

/* Some ranks: few or many, near or far, sometimes without rank 0, sometimes one. */
static void choose_group(script_t *script, int index, uint64_t *random)
{
    world_group_t *group = &script->groups[index];
    int size = script->options.size, one_in = 1 + (int)below(random, 6);
    int begin = (int)below(random, (uint64_t)size);

    for (int rank = below(random, 2) == 0 ? begin : 0; rank < size; rank++) {
        if (below(random, (uint64_t)one_in) == 0) group->ranks[group->count++] = rank;
    }
    if (group->count == 0) group->ranks[group->count++] = begin;
}

static int add_tensor(script_t *script, int group, dp_collective_t collective, int name)
{
    script->kinds[script->tensor_count] = (world_tensor_t){group, collective, -1, -1, name};
    return script->tensor_count++;
}

static void choose_tensor(script_t *script, int group, int name, uint64_t *random)
{
    static const dp_collective_t kinds[] = {DP_COLLECTIVE_ALLREDUCE, DP_COLLECTIVE_ALLREDUCE,
                                            DP_COLLECTIVE_ALLGATHER, DP_COLLECTIVE_REDUCE_SCATTER,
                                            DP_COLLECTIVE_BROADCAST, DP_COLLECTIVE_ALLGATHERV,
                                            DP_COLLECTIVE_BARRIER,   DP_COLLECTIVE_SEND};
    dp_collective_t collective = kinds[below(random, DP_ARRAY_LEN(kinds))];
    int size = size_of(script, group);
    world_tensor_t *kind;

    if (collective == DP_COLLECTIVE_SEND && size < 2) collective = DP_COLLECTIVE_ALLREDUCE;
    if (!script->options.has_groups) collective = DP_COLLECTIVE_ALLREDUCE;
    kind = &script->kinds[add_tensor(script, group, collective, name)];
    if (collective == DP_COLLECTIVE_BROADCAST) kind->root = (int)below(random, (uint64_t)size);
    if (collective != DP_COLLECTIVE_SEND) return;
    kind->root = (int)below(random, (uint64_t)size);
    kind->peer = (kind->root + 1 + (int)below(random, (uint64_t)size - 1)) % size;
}

static void choose_groups(script_t *script, uint64_t *random)
{
    const script_options_t *options = &script->options;
    int groups = options->has_groups ? 1 + (int)below(random, GROUPS_MAX) : 0;
    /* Sometimes the world itself does nothing. */
    int world_tensors = options->has_groups ? (int)below(random, 4) : options->world_tensors;
    size_t room = (size_t)world_tensors + (size_t)groups * (TENSORS_PER_GROUP_MAX + 2);

    script->group_count = groups + 1;
    script->groups = allocate((size_t)script->group_count, sizeof(*script->groups));
    script->creates = allocate((size_t)script->group_count, sizeof(int));
    script->destroys = allocate((size_t)script->group_count, sizeof(int));
    script->joins = allocate((size_t)script->group_count, sizeof(int));
    script->kinds = allocate(room, sizeof(*script->kinds));
    script->used = allocate(room, sizeof(int));
    for (int t = 0; t < world_tensors; t++)
        choose_tensor(script, 0, t, random);
    for (int g = 1; g <= groups; g++) {
        int tensors = 1 + (int)below(random, TENSORS_PER_GROUP_MAX);

        choose_group(script, g, random);
        for (int t = 0; t < tensors; t++)
            choose_tensor(script, g, t, random); /* names as in other groups */
        script->creates[g] = add_tensor(script, g, DP_COLLECTIVE_GROUP_CREATE, 1000 + g);
        script->destroys[g] = add_tensor(script, g, DP_COLLECTIVE_GROUP_DESTROY, 2000);
    }
}

/* ---- Acts ----------------------------------------------------------------------------------- */

static void act(script_t *script, int rank, act_kind_t kind, int index, int until, uint64_t count)
{
    size_t room = script->act_room[rank];

    if (script->act_count[rank] == room) {
        room = room * 2 + 16;
        script->acts[rank] = realloc(script->acts[rank], room * sizeof(act_t));
        if (script->acts[rank] == NULL) exit(2);
        script->act_room[rank] = room;
    }
    script->acts[rank][script->act_count[rank]++] = (act_t){kind, index, until, count};
}

static int is_odd(const script_t *script, int tensor, int step)
{
    const script_options_t *options = &script->options;

    return step == options->mismatch_step && tensor % 3 == options->mismatch_tensor % 3 &&
           script->kinds[tensor].collective != DP_COLLECTIVE_BARRIER &&
           takes_part(script, tensor, options->mismatch_rank);
}

static uint64_t shape(const script_t *script, int rank, int tensor, int step)
{
    const script_options_t *options = &script->options;
    uint64_t count = 100 + (uint64_t)tensor;

    if (options->reshape_step > 0 && step >= options->reshape_step) count += 1000;
    if (is_odd(script, tensor, step) && rank == options->mismatch_rank) count += 7;
    return count;
}

static int ranks_of(const script_t *script, int tensor)
{
    return script->kinds[tensor].collective == DP_COLLECTIVE_SEND
               ? 2
               : size_of(script, script->kinds[tensor].group);
}

static void shuffle(int *order, int count, uint64_t *random)
{
    for (int i = count - 1; i > 0; i--) {
        int k = (int)below(random, (uint64_t)i + 1), kept = order[i];

        order[i] = order[k];
        order[k] = kept;
    }
}

/* One rank's step: the tensors of the groups that are alive, in an order of its own. */
static void plan_step(script_t *script, int rank, const int *alive, int without, int step,
                      uint64_t *random)
{
    int *order = allocate((size_t)script->tensor_count, sizeof(*order)), count = 0;

    for (int t = 0; t < script->tensor_count; t++) {
        const world_tensor_t *kind = &script->kinds[t];

        if (kind->collective >= DP_COLLECTIVE_JOIN || !alive[kind->group]) continue;
        if (kind->group == without || !takes_part(script, t, rank)) continue;
        order[count++] = t;
    }
    shuffle(order, count, random);
    for (int i = 0; i < count; i++) {
        act(script, rank, ACT_SUBMIT, order[i], 0, shape(script, rank, order[i], step));
        if (is_odd(script, order[i], step) && ranks_of(script, order[i]) > 1)
            script->failures[rank]++;
    }
    if (script->options.waits_at_step_end) act(script, rank, ACT_DRAIN, -1, 0, 0);
    free(order);
}

/* Sends and a root that has joined are errors; only groups without them are joined. */
static int is_joinable(const script_t *script, int group)
{
    int tensors = 0;

    for (int t = 0; t < script->tensor_count; t++) {
        const world_tensor_t *kind = &script->kinds[t];

        if (kind->group != group || kind->collective >= DP_COLLECTIVE_JOIN) continue;
        if (kind->collective == DP_COLLECTIVE_SEND || kind->root >= 0) return 0;
        tensors++;
    }
    return tensors > 0;
}

static void make_and_end(script_t *script, const int *before, const int *after, int makes,
                         uint64_t *random)
{
    int waits_each = (int)below(random, 2);

    for (int r = 0; r < script->options.size; r++) {
        for (int g = 1; g < script->group_count; g++) {
            int tensor = makes ? script->creates[g] : script->destroys[g];

            if (before[g] == after[g] || after[g] != makes || !is_member(script, g, r)) continue;
            if (!makes) act(script, r, ACT_DRAIN, g, 0, 0);
            act(script, r, ACT_SUBMIT, tensor, 0, 0);
            if (waits_each) act(script, r, ACT_WAIT, tensor, 0, 0);
        }
        for (int g = 1; g < script->group_count; g++) {
            int tensor = makes ? script->creates[g] : script->destroys[g];

            if (before[g] != after[g] && after[g] == makes && is_member(script, g, r))
                act(script, r, ACT_WAIT, tensor, 0, 0);
        }
    }
}

static void plan_steps(script_t *script, const int *alive, int first_step, int steps,
                       uint64_t *random)
{
    int joined = -1, until = 0;

    if (script->options.may_join && below(random, 2) == 0) {
        joined = (int)below(random, (uint64_t)script->group_count);
        if (!alive[joined] || !is_joinable(script, joined)) joined = -1;
    }
    for (int t = 0; t < script->tensor_count; t++) {
        const world_tensor_t *kind = &script->kinds[t];

        if (kind->collective >= DP_COLLECTIVE_JOIN || !alive[kind->group]) continue;
        script->used[t] += steps;
        if (kind->group == joined) until = script->used[t];
    }
    if (joined >= 0) script->joins[joined]++;
    for (int r = 0; r < script->options.size; r++) {
        int own_steps = (int)below(random, (uint64_t)steps + 1);
        int joins = joined >= 0 && is_member(script, joined, r);

        for (int s = 0; s < steps; s++) {
            if (joins && s == own_steps) act(script, r, ACT_JOIN, joined, until, 0);
            plan_step(script, r, alive, joins && s >= own_steps ? joined : SEVERAL, first_step + s,
                      random);
        }
        if (joins && own_steps == steps) act(script, r, ACT_JOIN, joined, until, 0);
        if (joins) act(script, r, ACT_WAIT_JOIN, joined, 0, 0);
    }
}

void script_init(script_t *script, const script_options_t *options, uint64_t *random)
{
    int phases = options->has_groups ? 1 + (int)below(random, PHASES_MAX) : 1, step = 0;
    int *alive, *next;

    memset(script, 0, sizeof(*script));
    script->options = *options;
    script->acts = allocate((size_t)options->size, sizeof(act_t *));
    script->act_count = allocate((size_t)options->size, sizeof(*script->act_count));
    script->act_room = allocate((size_t)options->size, sizeof(*script->act_room));
    script->failures = allocate((size_t)options->size, sizeof(*script->failures));
    choose_groups(script, random);
    script->occurrences = dp_max(options->steps, phases);
    alive = allocate((size_t)script->group_count, sizeof(*alive));
    next = allocate((size_t)script->group_count, sizeof(*next));
    alive[0] = next[0] = 1;
    for (int phase = 0; phase < phases; phase++) {
        int steps = options->steps / phases + (phase < options->steps % phases);

        for (int g = 1; g < script->group_count; g++)
            next[g] = below(random, 3) > 0;
        make_and_end(script, alive, next, 0, random);
        make_and_end(script, alive, next, 1, random);
        memcpy(alive, next, (size_t)script->group_count * sizeof(*alive));
        plan_steps(script, alive, step, steps, random);
        step += steps;
    }
    free(alive);
    free(next);
}

void script_fini(script_t *script)
{
    for (int r = 0; r < script->options.size; r++)
        free(script->acts[r]);
    free(script->acts);
    free(script->act_count);
    free(script->act_room);
    free(script->failures);
    free(script->groups);
    free(script->kinds);
    free(script->creates);
    free(script->destroys);
    free(script->joins);
    free(script->used);
    memset(script, 0, sizeof(*script));
}
