/*
 * sharding.c - when groups of weights and gradients travel between ranks that share them out.
 *
 *   forward    wte  root  h.0 ... h.L-1  head    each group is waited for, the next ones travel
 *   backward   root  h.L-1 ... h.0  wte          likewise; complete gradients leave by groups
 *   update     wte  root  h.0 ... h.L-1          a group leaves when new: forward waits for little
 *
 * The tokens' group is held from the first lookup to the end of backward, the last block from
 * forward to backward. Whether a group has to travel at all is libdp's business: where a rank holds
 * all weights, waiting for them costs nothing.
 */
#include "examples/gpt2/strategy/sharding.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BLOCK ((size_t)2) /* position in the layout's groups */

struct gpt2_sharding {
    gpt2_dp_t *dp;           /* borrowed */
    gpt2_replica_t *replica; /* borrowed */
    gpt2_supply_t supply;
    gpt2_error_t error; /* of an entry of the supply */
    dp_shards_t *shards;
    dp_group_t *owners;   /* the ranks that share out one copy of the state; NULL: all */
    dp_group_t *replicas; /* hybrid: the ranks of other nodes with the same rows */
    size_t groups;
    size_t prefetch;
    gpt2_shard_t shard;
    int has_halves;                /* 1: weights have 16 bits */
    int keeps_weights;             /* 1: all weights are there between updates, without slots */
    uint8_t *held;                 /* [groups] 1: waited for and not released */
    float **weights;               /* [groups] of those */
    float *collected[GPT2_ARENAS]; /* [largest group], while a checkpoint is collected */
};

static int failed(gpt2_sharding_t *self, const char *what, size_t group, dp_status_t status,
                  gpt2_error_t *error)
{
    char text[96];

    (void)snprintf(text, sizeof(text), "%s of %s", what, self->replica->layout->groups[group].name);
    return gpt2_dp_failed(self->dp, text, status, error);
}

static dp_group_t *owners_of(const gpt2_sharding_t *self)
{
    return self->owners == NULL ? dp_world(self->dp->context) : self->owners;
}

/* 1: rank 0 is among the ranks that share this rank's copy of the state out. */
static int is_first_copy(const gpt2_sharding_t *self)
{
    return dp_group_world_rank(owners_of(self), 0) == 0;
}

/* 1: every rank of a copy has all of the group. Not to be asked of a part: a small group may lie in
 * the first rank's row. */
static int is_whole(const gpt2_sharding_t *self, size_t group)
{
    return group == GPT2_GROUP_ROOT || dp_group_size(owners_of(self)) == 1;
}

/* ---- The supply of passes ------------------------------------------------------------------- */

static int fetch_weights(gpt2_sharding_t *self, size_t group)
{
    const void *weights = NULL;
    dp_status_t status;

    if (self->held[group]) return 0;
    status = dp_shards_wait(self->shards, group, self->replica->stream, &weights);
    if (status != DP_OK) return failed(self, "the weights", group, status, &self->error);
    self->held[group] = 1;
    self->weights[group] = (void *)(uintptr_t)weights; /* passes only read them */
    return 0;
}

static int release_weights(gpt2_sharding_t *self, size_t group)
{
    dp_status_t status;

    if (!self->held[group]) return 0;
    self->held[group] = 0;
    status = dp_shards_release(self->shards, group);
    return status == DP_OK ? 0 : failed(self, "the release", group, status, &self->error);
}

/* Starts the gathers of the blocks that come behind `group`; libdp leaves out what is there, and
 * what it has no memory for yet. */
static int gather_ahead(gpt2_sharding_t *self, size_t group, gpt2_phase_t phase)
{
    for (size_t i = 1; i <= self->prefetch; i++) {
        size_t next = group + i;
        dp_status_t status;

        if (phase == GPT2_BACKWARD) {
            if (group < FIRST_BLOCK + i) break;
            next = group - i;
        } else if (next == GPT2_GROUP_ROOT) {
            continue;
        } else if (next >= self->groups) {
            break;
        }
        if (self->held[next]) continue;
        status = dp_shards_gather(self->shards, next, self->replica->stream);
        if (status != DP_OK) return failed(self, "the gather", next, status, &self->error);
    }
    return 0;
}

/* Where a walk through the blocks stands when `group` is asked for: the root and the tokens are
 * used on the way into the blocks. */
static size_t position(const gpt2_sharding_t *self, size_t group, gpt2_phase_t phase)
{
    if (group >= FIRST_BLOCK) return group;
    return phase == GPT2_FORWARD ? GPT2_GROUP_ROOT : self->groups - 1;
}

static int before_use(void *user, size_t group, gpt2_phase_t phase, float **weights,
                      float **gradients)
{
    gpt2_sharding_t *self = user;
    dp_status_t status;

    if (fetch_weights(self, group) != 0) return -1;
    *weights = self->weights[group];
    if (phase == GPT2_BACKWARD) {
        status = dp_shards_gradients(self->shards, group, self->replica->stream, gradients);
        if (status != DP_OK) return failed(self, "the gradients", group, status, &self->error);
    }
    return gather_ahead(self, position(self, group, phase), phase);
}

static int after_use(void *user, size_t group, gpt2_phase_t phase)
{
    gpt2_sharding_t *self = user;
    const size_t last = self->groups - 1;

    /* Backward begins with the last block. */
    if (phase == GPT2_FORWARD && group == last) return 0;
    if (release_weights(self, group) != 0) return -1;
    if (group >= FIRST_BLOCK) {
        /* In forward the next block is in use already. */
        return gather_ahead(self, phase == GPT2_FORWARD ? group + 1 : group, phase);
    }
    /* The end of a pass without backward. */
    return phase == GPT2_FORWARD ? release_weights(self, last) : 0;
}

static int after_update(void *user, size_t group)
{
    gpt2_sharding_t *self = user;
    dp_status_t status;

    /* Where groups take turns in slots, what the next forward begins with is enough. */
    if (!self->keeps_weights && group >= FIRST_BLOCK + self->prefetch) return 0;
    status = dp_shards_gather(self->shards, group, self->replica->stream);
    return status == DP_OK ? 0 : failed(self, "the gather", group, status, &self->error);
}

/* Of LAMB: over the ranks that divide one copy among them. */
static int sum(void *user, double *values, size_t count)
{
    gpt2_sharding_t *self = user;
    void *stream = self->replica->stream;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    options.stream = stream;
    options.launch_now = stream != NULL;
    status = dp_allreduce(owners_of(self), "gpt2.partials", values, values, count, DP_F64, &options,
                          &handle);
    if (stream != NULL && status == DP_OK) {
        status = dp_stream_wait(handle, stream, -1.0);
        dp_release(handle);
        return status == DP_OK
                   ? 0
                   : gpt2_dp_failed(self->dp, "sums over tensors", status, &self->error);
    }
    return gpt2_dp_finish(self->dp, "sums over tensors", status, handle, &self->error);
}

/* ---- Life ----------------------------------------------------------------------------------- */

/* Hybrid: ranks of a node share the state out, and every node has all of it. */
static int split_by_node(gpt2_sharding_t *self, gpt2_error_t *error)
{
    dp_context_t *context = self->dp->context;
    gpt2_strategy_t *base = &self->dp->base;
    dp_status_t status;
    int same;

    if (gpt2_dp_equal(base, (uint64_t)dp_local_size(context), &same, error) != 0) return -1;
    if (!same) {
        return gpt2_fail(error,
                         "rank %d: --shard hybrid: nodes have unequal numbers of ranks, this one "
                         "has %d of %d",
                         base->rank, dp_local_size(context), base->size);
    }
    status =
        dp_group_split(dp_world(context), "shard", dp_node_rank(context), 0, NULL, &self->owners);
    if (status == DP_OK && dp_node_count(context) > 1) {
        status = dp_group_split(dp_world(context), "replicas", dp_local_rank(context), 0, NULL,
                                &self->replicas);
    }
    return status == DP_OK ? 0 : gpt2_dp_failed(self->dp, "dp_group_split", status, error);
}

static int create_shards(gpt2_sharding_t *self, const gpt2_strategy_settings_t *settings,
                         gpt2_error_t *error)
{
    static const dp_shard_stage_t stages[] = {[GPT2_SHARD_NONE] = DP_SHARD_NONE,
                                              [GPT2_SHARD_OPTIMIZER] = DP_SHARD_OPTIMIZER,
                                              [GPT2_SHARD_GRADIENTS] = DP_SHARD_GRADIENTS,
                                              [GPT2_SHARD_WEIGHTS] = DP_SHARD_WEIGHTS,
                                              [GPT2_SHARD_HYBRID] = DP_SHARD_WEIGHTS};
    const gpt2_layout_t *layout = self->replica->layout;
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    dp_shards_memory_t memory = DP_SHARDS_MEMORY_INIT;
    dp_shard_unit_t *groups = calloc(self->groups, sizeof(*groups));
    dp_status_t status;

    if (groups == NULL) return gpt2_fail(error, "out of memory for %zu groups", self->groups);
    for (size_t i = 0; i < self->groups; i++) {
        groups[i] = (dp_shard_unit_t){.name = layout->groups[i].name,
                                      .count = layout->groups[i].count,
                                      .is_whole = i == GPT2_GROUP_ROOT};
    }
    options.stage = stages[settings->shard];
    options.wire = gpt2_dp_wire(settings->wire);
    options.accumulation_steps = settings->accumulate;
    options.clip_norm = settings->clip;
    options.prefetch = settings->prefetch;
    /* A token embedding as large as a block has one of the blocks' slots, for a whole pass. */
    if (layout->groups[GPT2_GROUP_WTE].count == layout->groups[FIRST_BLOCK].count) {
        options.prefetch = 1 + (settings->prefetch > 2 ? settings->prefetch : 2);
    }
    options.initial_loss_scale = settings->scale.initial;
    options.growth_interval = settings->scale.growth_interval;
    options.hysteresis = settings->scale.hysteresis;
    options.group = self->owners;
    options.replicas = self->replicas;
    if (settings->halves != NULL) {
        self->has_halves = 1;
        options.weights = strcmp(settings->halves, "fp16") == 0 ? DP_F16 : DP_BF16;
    }
    status = dp_shards_create(self->dp->context, groups, self->groups, &options, &self->shards);
    free(groups);
    if (status != DP_OK) return gpt2_dp_failed(self->dp, "dp_shards_create", status, error);
    (void)dp_shards_memory_get(self->shards, &memory);
    self->keeps_weights = memory.weight_slots == 0;
    return 0;
}

/* Tells the replica what it updates. */
static int supply_replica(gpt2_sharding_t *self, gpt2_error_t *error)
{
    gpt2_part_t *parts = calloc(self->groups, sizeof(*parts));
    int code = 0;

    if (parts == NULL) return gpt2_fail(error, "out of memory for %zu groups", self->groups);
    for (size_t i = 0; i < self->groups && code == 0; i++) {
        const int has_halves = self->has_halves;
        dp_shard_row_t row = DP_SHARD_ROW_INIT;
        const dp_status_t status = dp_shards_row(self->shards, i, &row);

        if (status != DP_OK) code = failed(self, "the row", i, status, error);
        parts[i] = (gpt2_part_t){.weights = has_halves ? NULL : row.weights,
                                 .halves = has_halves ? row.weights : NULL,
                                 .gradients = row.gradients,
                                 .first = row.first,
                                 .count = row.count,
                                 .is_whole = is_whole(self, i)};
    }
    if (code == 0) {
        code = self->replica->ops->supply(self->replica, &self->supply, parts, error);
    }
    free(parts);
    return code;
}

int gpt2_sharding_create(gpt2_dp_t *dp, gpt2_replica_t *replica,
                         const gpt2_strategy_settings_t *settings, gpt2_sharding_t **out,
                         gpt2_error_t *error)
{
    gpt2_sharding_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for sharding");
    self->dp = dp;
    self->replica = replica;
    self->supply = (gpt2_supply_t){self, before_use, after_use, after_update, sum, &self->error};
    self->groups = replica->layout->group_count;
    self->prefetch = (size_t)settings->prefetch;
    self->shard = settings->shard;
    self->held = calloc(self->groups, sizeof(*self->held));
    self->weights = calloc(self->groups, sizeof(*self->weights));
    if (self->held == NULL || self->weights == NULL) {
        gpt2_sharding_destroy(self);
        return gpt2_fail(error, "out of memory for %zu groups", replica->layout->group_count);
    }
    if ((settings->shard == GPT2_SHARD_HYBRID && split_by_node(self, error) != 0) ||
        create_shards(self, settings, error) != 0 || supply_replica(self, error) != 0) {
        gpt2_sharding_destroy(self);
        return -1;
    }
    *out = self;
    return 0;
}

void gpt2_sharding_destroy(gpt2_sharding_t *self)
{
    if (self == NULL) return;
    gpt2_sharding_end_collect(self);
    dp_shards_destroy(self->shards);
    free(self->held);
    free(self->weights);
    free(self);
}

/* ---- Gradients ------------------------------------------------------------------------------ */

static int ready_group(gpt2_sharding_t *self, size_t group, gpt2_error_t *error)
{
    const dp_status_t status = dp_shards_ready(self->shards, group, self->replica->stream);

    return status == DP_OK ? 0 : failed(self, "the gradients", group, status, error);
}

int gpt2_sharding_ready(gpt2_sharding_t *self, size_t first, size_t count, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;

    /* A group is ready with the last of its tensors. */
    for (size_t i = first; i < first + count; i++) {
        const size_t group = layout->tensors[i].group;

        if (gpt2_group_last(layout, group) != i) continue;
        if (ready_group(self, group, error) != 0) return -1;
    }
    return 0;
}

dp_status_t gpt2_sharding_get_scale(gpt2_sharding_t *self, dp_loss_scale_t *state)
{
    return dp_shards_loss_scale_get(self->shards, state);
}

dp_status_t gpt2_sharding_set_scale(gpt2_sharding_t *self, const dp_loss_scale_t *state)
{
    return dp_shards_loss_scale_set(self->shards, state);
}

/* Norm, clip and skip stay in the device's memory, where the optimizer's kernels read them. */
static int sync_on_device(gpt2_sharding_t *self, gpt2_sync_t *out, gpt2_error_t *error)
{
    dp_device_result_t result = DP_DEVICE_RESULT_INIT;
    const dp_status_t status = dp_shards_sync_on(self->shards, self->replica->stream, &result);

    if (status != DP_OK) return gpt2_dp_failed(self->dp, "dp_shards_sync_on", status, error);
    *out = (gpt2_sync_t){.clip = 1.0,
                         .device_norm = result.norm,
                         .device_clip = result.clip_coef,
                         .device_skip = result.skip};
    return 0;
}

int gpt2_sharding_sync(gpt2_sharding_t *self, gpt2_sync_t *out, gpt2_error_t *error)
{
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status;

    if (self->replica->stream != NULL) return sync_on_device(self, out, error);
    status = dp_shards_sync(self->shards, &result);
    if (status != DP_OK) return gpt2_dp_failed(self->dp, "dp_shards_sync", status, error);
    *out = (gpt2_sync_t){.norm = result.norm, .clip = result.clip_coef, .skip = result.skip};
    return 0;
}

void gpt2_sharding_describe(const gpt2_sharding_t *self, char *text, size_t room)
{
    static const char *const shared[] = {[GPT2_SHARD_NONE] = "nothing",
                                         [GPT2_SHARD_OPTIMIZER] = "moments",
                                         [GPT2_SHARD_GRADIENTS] = "moments and gradients",
                                         [GPT2_SHARD_WEIGHTS] = "moments, gradients and weights",
                                         [GPT2_SHARD_HYBRID] = "moments, gradients and weights"};
    const double mib = 1048576.0;
    dp_shards_memory_t memory = DP_SHARDS_MEMORY_INIT;

    (void)dp_shards_memory_get(self->shards, &memory);
    (void)snprintf(text, room,
                   "%s in rows of %d rank%s; here weights %.1f MiB, gradients %.1f MiB%s",
                   shared[self->shard], dp_group_size(owners_of(self)),
                   dp_group_size(owners_of(self)) == 1 ? "" : "s",
                   (double)(memory.weights + memory.weight_slots) / mib,
                   (double)(memory.gradients + memory.gradient_slots) / mib,
                   memory.mapped_weights > 0 ? ", other ranks' rows read where they lie" : "");
}

/* ---- Checkpoints ---------------------------------------------------------------------------- */

static float *part_of(const gpt2_sharding_t *self, gpt2_arena_t arena, size_t group)
{
    const gpt2_part_t *part = &self->replica->parts[group];

    return arena == GPT2_WEIGHTS ? part->weights : arena == GPT2_MOMENT_M ? part->m : part->v;
}

/* Floats between host memory and the replica's. */
static int copy_floats(gpt2_sharding_t *self, float *to, const float *from, size_t count,
                       gpt2_error_t *error)
{
    gpt2_replica_t *replica = self->replica;

    if (count == 0) return 0;
    if (replica->ops->copy != NULL) {
        return replica->ops->copy(replica, to, from, count * sizeof(*to), error);
    }
    memcpy(to, from, count * sizeof(*to));
    return 0;
}

/* *out [the part's count] = it in host memory: where it lies, or a copy, which *copy owns then. */
static int part_on_host(gpt2_sharding_t *self, gpt2_arena_t arena, size_t group, float **out,
                        float **copy, gpt2_error_t *error)
{
    const size_t count = self->replica->parts[group].count;

    *out = part_of(self, arena, group);
    *copy = NULL;
    if (self->replica->ops->copy == NULL) return 0;
    *copy = malloc((count + 1) * sizeof(float));
    if (*copy == NULL) {
        return gpt2_fail(error, "rank %d: out of memory: %zu MiB for a part of the state",
                         self->dp->base.rank, count * sizeof(float) >> 20);
    }
    if (copy_floats(self, *copy, *out, count, error) != 0) {
        free(*copy);
        return -1;
    }
    *out = *copy;
    return 0;
}

/* Memory for all of a group. */
static int collect_memory(gpt2_sharding_t *self, gpt2_arena_t arena, gpt2_error_t *error)
{
    const size_t bytes = gpt2_layout_largest_group(self->replica->layout) * sizeof(float);

    if (self->collected[arena] != NULL) return 0;
    self->collected[arena] = malloc(bytes);
    if (self->collected[arena] != NULL) return 0;
    return gpt2_fail(error, "rank %d: out of memory: %zu MiB for a group of the checkpoint",
                     self->dp->base.rank, bytes >> 20);
}

int gpt2_sharding_collect(gpt2_sharding_t *self, gpt2_arena_t arena, size_t group,
                          const float **data, gpt2_error_t *error)
{
    const gpt2_part_t *part = &self->replica->parts[group];
    const size_t count = self->replica->layout->groups[group].count;
    const int is_device = self->replica->ops->copy != NULL;
    const int is_root = self->dp->base.rank == 0; /* the others need no memory for all of it */
    dp_handle_t *handle = NULL;
    dp_status_t status;
    float *copy;
    float *own = part_of(self, arena, group);
    int code;

    if (is_root) *data = own;
    if (is_whole(self, group) && (!is_device || !is_root)) return 0;
    if (!is_first_copy(self)) return 0; /* the copy of rank 0's node is enough */
    if (is_root && collect_memory(self, arena, error) != 0) return -1;
    if (is_root) *data = self->collected[arena];
    if (is_whole(self, group)) {
        return copy_floats(self, self->collected[arena], own, part->count, error);
    }
    if (part_on_host(self, arena, group, &own, &copy, error) != 0) return -1;
    status = dp_gatherv(owners_of(self), "gpt2.collect", own, part->count, self->collected[arena],
                        count, NULL, DP_F32, 0, NULL, &handle);
    code = gpt2_dp_finish(self->dp, "collecting the state", status, handle, error);
    free(copy);
    return code;
}

void gpt2_sharding_end_collect(gpt2_sharding_t *self)
{
    for (int i = 0; i < GPT2_ARENAS; i++) {
        free(self->collected[i]);
        self->collected[i] = NULL;
    }
}

/* Moments and masters: every rank gets the group and keeps its part. */
static int distribute_parts(gpt2_sharding_t *self, gpt2_arena_t arena, size_t group,
                            const float *data, gpt2_error_t *error)
{
    const gpt2_part_t *part = &self->replica->parts[group];
    const size_t count = self->replica->layout->groups[group].count;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    if (collect_memory(self, arena, error) != 0) return -1;
    if (self->dp->base.rank == 0) memcpy(self->collected[arena], data, count * sizeof(*data));
    status = dp_broadcast(dp_world(self->dp->context), "gpt2.distribute", self->collected[arena],
                          self->collected[arena], count, DP_F32, 0, NULL, &handle);
    if (gpt2_dp_finish(self->dp, "handing the state out", status, handle, error) != 0) return -1;
    return copy_floats(self, part_of(self, arena, group), self->collected[arena] + part->first,
                       part->count, error);
}

int gpt2_sharding_distribute(gpt2_sharding_t *self, gpt2_arena_t arena, size_t group,
                             const float *data, gpt2_error_t *error)
{
    dp_status_t status;

    if (arena != GPT2_WEIGHTS || self->replica->parts[group].halves != NULL ||
        self->replica->ops->copy != NULL) {
        return distribute_parts(self, arena, group, data, error);
    }
    status = dp_shards_load(self->shards, group, self->dp->base.rank == 0 ? data : NULL);
    return status == DP_OK ? 0 : failed(self, "handing out", group, status, error);
}

int gpt2_sharding_hash(gpt2_sharding_t *self, uint64_t *hash, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;
    dp_handle_t *handle = NULL;
    dp_status_t status;
    uint64_t sum = 0;

    for (size_t i = 0; i < self->groups; i++) {
        gpt2_part_t part = self->replica->parts[i];
        float *copy;

        if (!(is_whole(self, i) ? self->dp->base.rank == 0 : is_first_copy(self))) continue;
        if (part_on_host(self, GPT2_WEIGHTS, i, &part.weights, &copy, error) != 0) return -1;
        sum += gpt2_part_hash(layout, i, &part);
        free(copy);
    }
    status = dp_allreduce(dp_world(self->dp->context), "gpt2.hash", &sum, hash, 1, DP_U64, NULL,
                          &handle);
    return gpt2_dp_finish(self->dp, "hash over ranks", status, handle, error);
}

int gpt2_sharding_compare(gpt2_sharding_t *self, int *same, gpt2_error_t *error)
{
    uint64_t hash;
    const dp_status_t status = dp_shards_hash(self->shards, &hash);

    *same = status == DP_OK;
    if (status == DP_OK || status == DP_ERR_CHECK) return 0;
    return gpt2_dp_failed(self->dp, "dp_shards_hash", status, error);
}
