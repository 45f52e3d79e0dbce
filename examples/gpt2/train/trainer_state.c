/*
 * trainer_state.c - the state of a run on its way in and out: first weights, checkpoints, a look at
 * all weights for samples and exports. Main thread only.
 *
 * A plain replica has all of the state on every rank, so rank 0 alone reads and writes. Where ranks
 * share the state, every rank makes the same calls: rank 0 reads or writes one group at a time, and
 * the strategy takes it apart or puts it together. So files have the same bytes either way.
 */
#include "examples/gpt2/train/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/data/llmc.h"
#include "examples/gpt2/data/safetensors.h"
#include "examples/gpt2/train/amp.h"
#include "examples/gpt2/train/trainer_parts.h"

/* ---- Extra state ---------------------------------------------------------------------------- */

/* list [GPT2_EXTRAS_MAX]: what strategy and replica have beside weights and moments. */
static size_t list_extras(const gpt2_trainer_t *self, gpt2_extra_t *list)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_replica_t *replica = self->replica;
    size_t count = 0;

    if (strategy->ops->extra != NULL) {
        count = strategy->ops->extra(strategy, list, GPT2_EXTRAS_MAX);
    }
    if (replica->ops->extra != NULL) {
        count += replica->ops->extra(replica, list + count, GPT2_EXTRAS_MAX - count);
    }
    return count + gpt2_amp_extra(self, list + count, GPT2_EXTRAS_MAX - count);
}

static int move_extras(gpt2_trainer_t *self, int is_loaded, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;

    if (strategy->ops->move_extra == NULL) return 0;
    return strategy->ops->move_extra(strategy, is_loaded, error);
}

/* Bytes of one rank's extra, through rank 0, which reads them; the others follow. */
static int load_extra(gpt2_trainer_t *self, const gpt2_manifest_t *manifest,
                      const gpt2_extra_t *extra, int rank, void *buffer, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    const gpt2_manifest_extra_t *listed = NULL;
    gpt2_extra_file_t file = {.file = NULL};
    const int is_mine = rank < 0 || rank == strategy->rank;
    int code = 0;

    if (strategy->rank == 0) {
        listed = gpt2_manifest_find(manifest, extra->name, rank);
        code = gpt2_extra_open(&file, self->resumed_from, listed, error);
    }
    for (size_t at = 0; at < extra->bytes && code == 0; at += GPT2_EXTRA_PIECE) {
        const size_t left = extra->bytes - at;
        const size_t bytes = left < GPT2_EXTRA_PIECE ? left : GPT2_EXTRA_PIECE;

        if (strategy->rank == 0) code = gpt2_extra_read(&file, buffer, bytes, error);
        if (code == 0 && rank != 0) {
            code = strategy->ops->broadcast(strategy, 0, buffer, bytes, error);
        }
        if (code == 0 && is_mine) memcpy((char *)extra->data + at, buffer, bytes);
    }
    if (strategy->rank == 0 && code == 0) code = gpt2_extra_finish(&file, listed, error);
    gpt2_extra_close(&file);
    return code;
}

/* Brings every extra back that this run has. Rank 0 sees which ones the checkpoint has. A failure
 * of rank 0 ends the others' calls when the run gives up. */
static int load_extras(gpt2_trainer_t *self, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_extra_t list[GPT2_EXTRAS_MAX];
    const size_t count = list_extras(self, list);
    gpt2_manifest_t *manifest = NULL;
    void *buffer;
    int code = 0;

    if (count == 0) return 0;
    buffer = malloc(GPT2_EXTRA_PIECE);
    if (buffer == NULL) return gpt2_fail(error, "out of memory for extra state");
    if (strategy->rank == 0) code = gpt2_manifest_load(self->resumed_from, &manifest, error);
    for (size_t i = 0; i < count && code == 0; i++) {
        const int ranks = list[i].per_rank ? strategy->size : 0;
        int32_t found = 0;

        if (strategy->rank == 0) {
            found = gpt2_extra_check(manifest, self->resumed_from, &list[i], strategy->size, error);
        }
        if (found < 0) code = -1;
        if (code == 0) {
            code = strategy->ops->broadcast(strategy, 0, &found, sizeof(found), error);
        }
        for (int rank = list[i].per_rank ? 0 : -1; rank < ranks && found && code == 0; rank++)
            code = load_extra(self, manifest, &list[i], rank, buffer, error);
    }
    gpt2_manifest_destroy(manifest);
    free(buffer);
    return code;
}

/* ---- First weights -------------------------------------------------------------------------- */

static int load_model(const gpt2_options_t *options, gpt2_model_t *model, gpt2_error_t *error)
{
    return gpt2_safetensors_is(options->init) ? gpt2_safetensors_load(options->init, model, error)
                                              : gpt2_llmc_load(options->init, model, error);
}

/* Rank 0 loads or draws the weights; attach() and the broadcasts copy them to the others. These
 * wait meanwhile, so rank 0 has all processors of its node. */
static int fill_host(gpt2_trainer_t *self, const gpt2_start_t *start, gpt2_state_t *state,
                     gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;

    if (self->strategy->rank != 0) return 0;
    if (start->resumed) {
        gpt2_progress_t ignored;

        return gpt2_checkpoint_load(self->resumed_from, state->model, state->optimizer, &ignored,
                                    error);
    }
    if (options->init != NULL) return load_model(options, state->model, error);
    gpt2_model_init_weights(state->model, (uint64_t)options->seed);
    return 0;
}

static int fill_whole(gpt2_trainer_t *self, const gpt2_start_t *start,
                      const gpt2_strategy_settings_t *settings, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_replica_t *replica = self->replica;
    size_t bytes = replica->layout->arena_count * sizeof(float);
    gpt2_state_t state;

    if (replica->ops->borrow(replica, start->resumed, &state, error) != 0) return -1;
    if (fill_host(self, start, &state, error) != 0) return -1;
    if (replica->ops->give_back(replica, 1, error) != 0) return -1;
    if (strategy->ops->attach(strategy, replica, settings, error) != 0) return -1;
    if (replica->ops->refresh(replica, error) != 0) return -1;
    if (!start->resumed) return 0;
    if (strategy->ops->broadcast(strategy, 0, replica->m, bytes, error) != 0) return -1;
    return strategy->ops->broadcast(strategy, 0, replica->v, bytes, error);
}

/* Groups on their way from a checkpoint to the ranks that share them. The root's tensors stand at
 * both ends of the list, so it has memory of its own. */
typedef struct incoming {
    gpt2_trainer_t *trainer;
    float *root[GPT2_ARENAS];  /* [root's count] */
    float *group[GPT2_ARENAS]; /* [largest group's count] */
} incoming_t;

static float *incoming_memory(const incoming_t *self, gpt2_arena_t arena, size_t group)
{
    return group == GPT2_GROUP_ROOT ? self->root[arena] : self->group[arena];
}

static float *incoming_place(void *user, gpt2_arena_t arena, size_t index, gpt2_error_t *error)
{
    const incoming_t *self = user;
    const gpt2_tensor_t *tensor = &self->trainer->replica->layout->whole->tensors[index];

    (void)error;
    return incoming_memory(self, arena, tensor->group) + tensor->place;
}

static int incoming_placed(void *user, gpt2_arena_t arena, size_t index, gpt2_error_t *error)
{
    const incoming_t *self = user;
    gpt2_strategy_t *strategy = self->trainer->strategy;
    const gpt2_layout_t *layout = self->trainer->replica->layout->whole;
    const size_t group = layout->tensors[index].group;
    float *memory = incoming_memory(self, arena, group);

    if (index != gpt2_group_last(layout, group)) return 0;
    if (strategy->ops->distribute(strategy, arena, group, memory, error) != 0) return -1;
    memset(memory, 0, layout->groups[group].count * sizeof(*memory)); /* gaps are zero */
    return 0;
}

/* Rank 0 reads the checkpoint, every rank takes its parts. */
static int resume_shards(gpt2_trainer_t *self, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout->whole;
    incoming_t incoming = {.trainer = self};
    const gpt2_sink_t sink = {
        .user = &incoming, .place = incoming_place, .placed = incoming_placed};
    int code = 0;

    for (int i = 0; i < GPT2_ARENAS && code == 0; i++) {
        incoming.root[i] = calloc(layout->groups[GPT2_GROUP_ROOT].count, sizeof(float));
        incoming.group[i] = calloc(gpt2_layout_largest_group(layout), sizeof(float));
        if (incoming.root[i] == NULL || incoming.group[i] == NULL) {
            code = gpt2_fail(error, "out of memory for the groups of a checkpoint");
        }
    }
    if (code == 0) {
        code = self->strategy->rank == 0
                   ? gpt2_checkpoint_read(self->resumed_from, layout, &sink, error)
                   : gpt2_sink_walk(layout, &sink, error);
    }
    for (int i = 0; i < GPT2_ARENAS; i++) {
        free(incoming.root[i]);
        free(incoming.group[i]);
    }
    return code;
}

/* All weights in plain memory, on rank 0. */
static int create_whole(const gpt2_trainer_t *self, gpt2_model_t **model, gpt2_error_t *error)
{
    const gpt2_model_options_t options = {.shape = self->replica->layout->shape,
                                          .batch = 1,
                                          .length = 1,
                                          .threads = 1,
                                          .weights_only = 1};

    return gpt2_model_create(&options, model, error);
}

/* Rank 0 reads a model of others whole, as its tensors have another order. */
static int init_shards(gpt2_trainer_t *self, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    const gpt2_layout_t *layout = self->replica->layout->whole;
    gpt2_model_t *model = NULL;
    int code = 0;

    if (strategy->rank == 0) code = create_whole(self, &model, error);
    if (strategy->rank == 0 && code == 0) code = load_model(self->options, model, error);
    for (size_t i = 0; i < layout->group_count && code == 0; i++) {
        code = strategy->ops->distribute(strategy, GPT2_WEIGHTS, i,
                                         model == NULL ? NULL : model->weights_at[i], error);
    }
    gpt2_model_destroy(model);
    return code;
}

static int fill_shards(gpt2_trainer_t *self, const gpt2_start_t *start,
                       const gpt2_strategy_settings_t *settings, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_replica_t *replica = self->replica;
    int code;

    if (strategy->ops->attach(strategy, replica, settings, error) != 0) return -1;
    if (start->resumed) {
        code = resume_shards(self, error);
    } else if (self->options->init != NULL) {
        code = init_shards(self, error);
    } else {
        code = replica->ops->draw(replica, (uint64_t)self->options->seed, error);
    }
    return code == 0 ? replica->ops->refresh(replica, error) : -1;
}

int gpt2_trainer_fill(gpt2_trainer_t *self, const gpt2_start_t *start, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;
    const gpt2_strategy_settings_t settings = {
        .wire = gpt2_options_wire(options, &self->precision),
        .accumulate = (int)options->accumulate,
        .length = (int)options->seq,
        .clip = options->clip,
        .scale = self->precision.scale,
        .shard = self->shard,
        .halves = self->precision.level < 2 ? NULL : gpt2_precision_name(self->precision.precision),
        .prefetch = (int)options->shard_prefetch,
        .compress = gpt2_options_compress(options)};

    self->progress = start->progress;
    self->first_step = self->progress.step;
    if ((!self->is_divided ? fill_whole(self, start, &settings, error)
                           : fill_shards(self, start, &settings, error)) != 0) {
        return -1;
    }
    if (!start->resumed) return 0;
    self->replica->updates = self->progress.updates;
    if (load_extras(self, error) != 0 || move_extras(self, 1, error) != 0) return -1;
    return gpt2_amp_restore(self, error);
}

/* ---- Checkpoints ---------------------------------------------------------------------------- */

/* A run's state on its way to a checkpoint. */
typedef struct outgoing {
    gpt2_trainer_t *trainer;
    gpt2_state_t state;             /* of a plain replica, on rank 0 */
    size_t group[GPT2_ARENAS];      /* the one at hand; SIZE_MAX: none is */
    const float *data[GPT2_ARENAS]; /* all of it, on rank 0 */
    gpt2_extra_t extras[GPT2_EXTRAS_MAX];
    void *piece; /* [GPT2_EXTRA_PIECE] */
} outgoing_t;

static const float *whole_tensor(void *user, gpt2_arena_t arena, size_t index, gpt2_error_t *error)
{
    const outgoing_t *self = user;
    const gpt2_optimizer_t *optimizer = self->state.optimizer;
    const float *arenas[GPT2_ARENAS];

    (void)error;
    if (self->trainer->strategy->rank != 0) return self->piece; /* rank 0 has all of it */
    arenas[GPT2_WEIGHTS] = self->state.model->weights;
    arenas[GPT2_MOMENT_M] = optimizer->m;
    arenas[GPT2_MOMENT_V] = optimizer->v;
    return arenas[arena] + self->trainer->replica->layout->tensors[index].offset;
}

static const float *shard_tensor(void *user, gpt2_arena_t arena, size_t index, gpt2_error_t *error)
{
    outgoing_t *self = user;
    gpt2_strategy_t *strategy = self->trainer->strategy;
    const gpt2_tensor_t *tensor = &self->trainer->replica->layout->whole->tensors[index];

    if (self->group[arena] != tensor->group) {
        self->group[arena] = tensor->group;
        if (strategy->ops->collect(strategy, arena, tensor->group, &self->data[arena], error) !=
            0) {
            return NULL;
        }
    }
    return strategy->rank == 0 ? self->data[arena] + tensor->place : self->piece;
}

static const void *extra_piece(void *user, size_t extra, int rank, size_t at, size_t bytes,
                               gpt2_error_t *error)
{
    const outgoing_t *self = user;
    gpt2_strategy_t *strategy = self->trainer->strategy;
    const char *own = (const char *)self->extras[extra].data + at;

    if (rank <= 0) return own; /* rank 0's, which saves */
    if (rank == strategy->rank) memcpy(self->piece, own, bytes);
    return strategy->ops->broadcast(strategy, rank, self->piece, bytes, error) == 0 ? self->piece
                                                                                    : NULL;
}

static int save_outgoing(outgoing_t *outgoing, const gpt2_content_t *content, int *is_saved,
                         gpt2_error_t *error)
{
    gpt2_trainer_t *self = outgoing->trainer;
    gpt2_replica_t *replica = self->replica;
    char folder[GPT2_PATH_MAX];
    const int borrows = !self->is_divided && self->strategy->rank == 0;
    int code;

    if (gpt2_trainer_folder(self->options, folder, error) != 0) return -1;
    if (borrows && replica->ops->borrow(replica, 1, &outgoing->state, error) != 0) return -1;
    code = self->strategy->rank == 0
               ? gpt2_checkpoint_write(folder, replica->layout->whole, content, &self->progress,
                                       is_saved, error)
               : gpt2_content_walk(replica->layout->whole, content, error);
    if (self->is_divided) self->strategy->ops->end_collect(self->strategy);
    if (borrows && replica->ops->give_back(replica, 0, *is_saved ? error : NULL) != 0) return -1;
    return code;
}

int gpt2_trainer_save(gpt2_trainer_t *self, int *is_saved, gpt2_error_t *error)
{
    outgoing_t outgoing = {.trainer = self, .group = {SIZE_MAX, SIZE_MAX, SIZE_MAX}};
    gpt2_content_t content = {.user = &outgoing,
                              .tensor = !self->is_divided ? whole_tensor : shard_tensor,
                              .piece = extra_piece,
                              .extras = outgoing.extras,
                              .ranks = self->strategy->size};
    int is_collective = self->is_divided;
    int code;

    *is_saved = 0;
    if (gpt2_trainer_settle(self, NULL, error) != 0) return -1;
    if (move_extras(self, 0, error) != 0) return -1;
    content.extra_count = list_extras(self, outgoing.extras);
    for (size_t i = 0; i < content.extra_count; i++)
        is_collective |= outgoing.extras[i].per_rank;
    if (self->strategy->rank != 0 && !is_collective) return 0;
    outgoing.piece = malloc(GPT2_EXTRA_PIECE);
    code = outgoing.piece == NULL
               ? gpt2_fail(error, "rank %d: out of memory for a checkpoint", self->strategy->rank)
               : save_outgoing(&outgoing, &content, is_saved, error);
    free(outgoing.piece);
    return is_collective ? code : 0; /* where it is not, nobody waits for this rank */
}

/* ---- A look at all weights ------------------------------------------------------------------ */

/* Rank 0 puts all groups together. */
static int collect_whole(gpt2_trainer_t *self, gpt2_model_t **model, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    const gpt2_layout_t *layout = self->replica->layout->whole;
    int code = 0;

    if (strategy->rank == 0) code = create_whole(self, model, error);
    for (size_t i = 0; i < layout->group_count && code == 0; i++) {
        const float *data = NULL;

        code = strategy->ops->collect(strategy, GPT2_WEIGHTS, i, &data, error);
        if (code != 0 || strategy->rank != 0) continue;
        memcpy((*model)->weights_at[i], data, layout->groups[i].count * sizeof(*data));
    }
    strategy->ops->end_collect(strategy);
    return code;
}

int gpt2_trainer_borrow(gpt2_trainer_t *self, const gpt2_model_t **model, gpt2_error_t *error)
{
    gpt2_state_t state;

    *model = NULL;
    if (self->is_divided) {
        if (collect_whole(self, &self->whole, error) != 0) return -1;
        *model = self->whole;
        return 0;
    }
    if (self->strategy->rank != 0) return 0;
    if (self->replica->ops->borrow(self->replica, 0, &state, error) != 0) return -1;
    *model = state.model;
    return 0;
}

int gpt2_trainer_give_back(gpt2_trainer_t *self, gpt2_error_t *error)
{
    gpt2_model_destroy(self->whole);
    self->whole = NULL;
    if (self->is_divided || self->strategy->rank != 0) return 0;
    return self->replica->ops->give_back(self->replica, 0, error);
}
