/*
 * replica.c - life of a replica on a GPU, and the table that the trainer sees.
 *
 * Everything is made here: plans of products, memory, streams, events, and every kernel is loaded.
 * A step allocates nothing.
 */
#include "examples/gpt2/cuda/replica.h"

#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/cuda/attention.h"
#include "examples/gpt2/cuda/checksum.h"
#include "examples/gpt2/cuda/plugin.h"
#include "examples/gpt2/cuda/kernels.h"

static void free_device(void *memory)
{
    if (memory != NULL) (void)cudaFree(memory);
}

static void cuda_destroy(gpt2_replica_t *base)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;

    if (self->stream != NULL) (void)cudaStreamSynchronize(self->stream);
    gpt2_cuda_places_destroy(self);
    gpt2_optimizer_destroy(self->optimizer);
    gpt2_model_destroy(self->model);
    gpt2_matmuls_destroy(self->matmuls);
    for (int turn = 0; turn < GPT2_CUDA_IN_FLIGHT; turn++) {
        if (self->upload[turn] != NULL) (void)cudaFreeHost(self->upload[turn]);
        if (self->uploaded[turn] != NULL) (void)cudaEventDestroy(self->uploaded[turn]);
        for (int i = 0; i < GPT2_MARKS; i++) {
            if (self->marks[turn][i] != NULL) (void)cudaEventDestroy(self->marks[turn][i]);
        }
    }
    if (self->endings != NULL) (void)cudaFreeHost(self->endings);
    if (self->announced != NULL) (void)cudaFreeHost(self->announced);
    if (self->allocator.alloc != NULL && base->gradients != NULL) {
        self->allocator.free(self->allocator.user, base->gradients);
    }
    free_device(self->state_memory);
    free_device(self->pass_memory);
    free_device(self->words);
    free_device(self->sum_scratch);
    free_device(self->low_rank_scratch);
    gpt2_cuda_sparse_free(self);
    if (self->stream != NULL) (void)cudaStreamDestroy(self->stream);
    free(self->pass.blocks);
    free(self->block_names);
    free(self->token_counts);
    free(self->token_rows);
    free(self->looked_up);
    gpt2_layout_destroy(self->layout);
    free(self);
}

static void cuda_describe(const gpt2_replica_t *base, char *text, size_t room)
{
    const gpt2_cuda_replica_t *self = (const gpt2_cuda_replica_t *)base;
    const char *text_of_level_2 = self->type == GPT2_CUDA_BF16 ? "bf16, weights and gradients too"
                                                               : "fp16, weights and gradients too";

    (void)snprintf(text, room, "%s, %s, recompute %s", self->gpu,
                   self->type == GPT2_CUDA_F32     ? "fp32"
                   : self->plan.options.level == 2 ? text_of_level_2
                   : self->type == GPT2_CUDA_BF16  ? "bf16 with fp32 weights"
                                                   : "fp16 with fp32 weights",
                   gpt2_recompute_name(self->plan.options.recompute));
}

static void print_plan(const gpt2_replica_t *base, FILE *out)
{
    const gpt2_cuda_replica_t *self = (const gpt2_cuda_replica_t *)base;

    gpt2_cuda_plan_print(&self->plan, self->free_bytes, out);
    if (self->notice[0] != '\0') (void)fprintf(out, "note    %s\n", self->notice);
}

static const gpt2_replica_ops_t OPS = {
    .name = "cuda",
    .is_async = 1,
    .destroy = cuda_destroy,
    .describe = cuda_describe,
    .print_plan = print_plan,
    .supply = gpt2_cuda_supply,
    .copy = gpt2_cuda_copy,
    .low_rank = &gpt2_cuda_low_rank,
    .sparse = &gpt2_cuda_sparse,
    .draw = gpt2_cuda_draw,
    .borrow = gpt2_cuda_borrow,
    .give_back = gpt2_cuda_give_back,
    .refresh = gpt2_cuda_refresh,
    .checksum = gpt2_cuda_checksum,
    .train = gpt2_cuda_train,
    .evaluate = gpt2_cuda_evaluate,
    .logits = gpt2_cuda_logits,
    .norm = gpt2_cuda_norm,
    .announce = gpt2_cuda_announce,
    .join = gpt2_cuda_join,
    .update = gpt2_cuda_update,
    .settle = gpt2_cuda_settle,
};

/* ---- Creation ------------------------------------------------------------------------------- */

static int find_gpu(gpt2_cuda_replica_t *self, gpt2_error_t *error)
{
    struct cudaDeviceProp properties;
    int device;

    if (gpt2_cuda_check((int)cudaGetDevice(&device), "no device", error) != 0 ||
        gpt2_cuda_check((int)cudaGetDeviceProperties(&properties, device), "its properties",
                        error) != 0) {
        return -1;
    }
    (void)snprintf(self->gpu, sizeof(self->gpu), "%.100s (%d)", properties.name, device);
    if (properties.major >= 8) return 0;
    return gpt2_fail(error, "GPU %s has compute capability %d.%d, this program needs 8.0 or newer",
                     self->gpu, properties.major, properties.minor);
}

/* The first is the cause of those behind it. */
static void take_notice(void *user, const char *text)
{
    gpt2_cuda_replica_t *self = user;

    if (self->notice[0] != '\0') return;
    (void)snprintf(self->notice, sizeof(self->notice), "%.200s", text);
}

/* A product and its sizes: in [rows][inputs], out [rows][outputs]. */
typedef struct planned_product {
    const gpt2_matmul_t **plan;
    size_t rows;
    size_t inputs;
    size_t outputs;
    gpt2_matmul_kind_t kind;
    int bias;
    int adds;
} planned_product_t;

#define PRODUCTS 15
#define HEAD_PRODUCTS 12 /* from here on */

/* proj and fcproj add their result and bias to the stream, so the gradients of these biases are
 * sums of the stream's gradient, which the norm's backward pass has at hand. */
static void list_products(gpt2_cuda_replica_t *self, planned_product_t *list)
{
    gpt2_cuda_products_t *p = &self->products;
    const size_t r = self->plan.rows;
    const size_t h = self->plan.head_rows;
    const size_t c = (size_t)self->layout->shape.width;
    const size_t v = (size_t)self->layout->shape.vocab_padded;
    const int adds = r / h > 2; /* all parts of the head but the first add to its gradient */
    const planned_product_t all[PRODUCTS] = {
        {&p->qkv, r, c, 3 * c, GPT2_MATMUL_FORWARD, 1, 0},
        {&p->proj, r, c, c, GPT2_MATMUL_FORWARD, 1, 1},
        {&p->fc, r, c, 4 * c, GPT2_MATMUL_FORWARD_GELU, 1, 0},
        {&p->fcproj, r, 4 * c, c, GPT2_MATMUL_FORWARD, 1, 1},
        {&p->qkv_input, r, c, 3 * c, GPT2_MATMUL_INPUT, 0, 0},
        {&p->proj_input, r, c, c, GPT2_MATMUL_INPUT, 0, 0},
        {&p->fc_input, r, c, 4 * c, GPT2_MATMUL_INPUT, 0, 0},
        {&p->fcproj_input, r, 4 * c, c, GPT2_MATMUL_INPUT_GELU, 1, 0},
        {&p->qkv_weight, r, c, 3 * c, GPT2_MATMUL_WEIGHT, 0, 0},
        {&p->proj_weight, r, c, c, GPT2_MATMUL_WEIGHT, 0, 0},
        {&p->fc_weight, r, c, 4 * c, GPT2_MATMUL_WEIGHT, 0, 0},
        {&p->fcproj_weight, r, 4 * c, c, GPT2_MATMUL_WEIGHT, 0, 0},
        {&p->head, h, c, v, GPT2_MATMUL_FORWARD, 0, 0},
        {&p->head_input, h, c, v, GPT2_MATMUL_INPUT, 0, 0},
        {&p->head_weight, h, c, v, GPT2_MATMUL_WEIGHT, 0, adds},
    };

    memcpy(list, all, sizeof(all));
}

static int make_products(gpt2_cuda_replica_t *self, gpt2_error_t *error)
{
    planned_product_t list[PRODUCTS];
    gpt2_error_t unsaved;

    list_products(self, list);
    for (int i = 0; i < PRODUCTS; i++) {
        const gpt2_matmul_shape_t shape = {.kind = list[i].kind,
                                           .type = self->type,
                                           .rows = list[i].rows,
                                           .inputs = list[i].inputs,
                                           .outputs = list[i].outputs,
                                           .bias = list[i].bias,
                                           .adds = list[i].adds};

        if (gpt2_matmuls_plan(self->matmuls, &shape, list[i].plan, error) != 0) return -1;
    }
    /* Without it the next start times anew; that ends nobody's run. */
    if (gpt2_matmuls_save(self->matmuls, &unsaved) != 0) take_notice(self, unsaved.text);
    return 0;
}

/* Runs every product once, over whatever lies in memory: cuBLASLt loads a kernel when it is first
 * launched, which could wait for ever for a collective that is already running. */
static int load_products(gpt2_cuda_replica_t *self, gpt2_error_t *error)
{
    gpt2_cuda_activations_t *all = &self->pass;
    const gpt2_cuda_block_t *block = &all->blocks[0];
    const void *weight = self->state.low;
    float *gradients = self->base.gradients; /* zeroed later */
    float *biases = self->state.m;
    planned_product_t list[PRODUCTS];
    float *borrowed = NULL;
    int code = 0;

    if (self->plan.options.is_supplied) { /* for the time being memory as large as a product's */
        const size_t largest = gpt2_layout_largest_group(self->layout);

        code = (int)cudaMalloc((void **)&borrowed, 2 * largest * sizeof(float));
        weight = gradients = borrowed;
        biases = borrowed + largest;
    }

    list_products(self, list);
    for (int i = 0; i < PRODUCTS && code == 0; i++) {
        const gpt2_matmul_t *plan = *list[i].plan;
        void *out = i >= HEAD_PRODUCTS ? all->logits : all->d_fc; /* or its gradient */

        switch (list[i].kind) {
        case GPT2_MATMUL_FORWARD:
        case GPT2_MATMUL_FORWARD_GELU:
            code = gpt2_matmul_forward(plan, self->stream, out,
                                       list[i].kind == GPT2_MATMUL_FORWARD_GELU ? block->fc : NULL,
                                       block->gelu, weight, list[i].bias ? weight : NULL,
                                       list[i].adds ? block->gelu : NULL);
            break;
        case GPT2_MATMUL_INPUT:
        case GPT2_MATMUL_INPUT_GELU:
            code = gpt2_matmul_input(plan, self->stream, block->gelu, out, weight,
                                     list[i].kind == GPT2_MATMUL_INPUT_GELU ? block->fc : NULL,
                                     list[i].bias ? biases : NULL, 0);
            break;
        case GPT2_MATMUL_WEIGHT:
            code = gpt2_matmul_weight(plan, self->stream, gradients, 0, out, block->gelu);
            break;
        }
    }
    if (code == 0) code = (int)cudaStreamSynchronize(self->stream);
    free_device(borrowed);
    return gpt2_cuda_check(code, "the first matrix products", error);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The most that one kernel wants. */
static size_t scratch_bytes(const gpt2_cuda_replica_t *self, size_t batch, size_t length)
{
    const gpt2_shape_t *shape = &self->layout->shape;
    const size_t rows = batch * length;
    const size_t width = (size_t)shape->width;
    size_t bytes = gpt2_cuda_norm_scratch_bytes(rows, width);

    bytes = larger(bytes, gpt2_cuda_embed_scratch_bytes(rows, width));
    return larger(bytes, gpt2_attention_scratch_bytes(self->type, (int)batch, (int)length,
                                                      shape->heads, shape->width / shape->heads));
}

/* Compares the plan with what the device has, before anything of its size is allocated. held: what
 * of the plan is allocated already. */
static int check_device_memory(const gpt2_cuda_replica_t *self, size_t held, gpt2_error_t *error)
{
    const gpt2_cuda_plan_t *plan = &self->plan;
    const size_t wanted = plan->total - held;
    char advice[GPT2_CUDA_ADVICE_MAX];
    size_t free_bytes;
    size_t all;

    if (gpt2_cuda_check((int)cudaMemGetInfo(&free_bytes, &all), "its memory", error) != 0) {
        return -1;
    }
    if (wanted <= free_bytes) return 0;
    return gpt2_fail(
        error,
        "out of memory on GPU %s: %zu sequences per pass want %zu MiB, %zu of %zu are "
        "free; %s",
        self->gpu, plan->options.batch, wanted >> 20, free_bytes >> 20, all >> 20,
        gpt2_cuda_plan_advise(&plan->options, self->layout, free_bytes + held, advice));
}

/* Shapes, products, memory plan: nothing of the model's size is allocated yet. */
static int plan_memory(gpt2_cuda_replica_t *self, const gpt2_replica_options_t *options,
                       gpt2_error_t *error)
{
    const size_t batch = (size_t)options->model.batch;
    const size_t length = (size_t)options->model.length;
    gpt2_matmul_options_t matmul_options = GPT2_MATMUL_OPTIONS_INIT;
    gpt2_cuda_plan_options_t plan_options = {
        .shape = options->model.shape,
        .type = self->type,
        .batch = batch,
        .length = length,
        .logits_bytes = options->logits_bytes,
        .lookups = options->lookups,
        .level = options->level,
        .is_supplied = options->model.is_supplied,
        .own_gradients = options->model.gradients.alloc == NULL && !options->model.is_supplied};
    const int size = options->model.shape.width / options->model.shape.heads;

    if (gpt2_recompute_parse(options->recompute, &plan_options.recompute) != 0) {
        return gpt2_fail(error, "--recompute %s: no such choice", options->recompute);
    }
    plan_options.scratch_bytes = scratch_bytes(self, batch, length);
    plan_options.table_bytes = gpt2_cuda_optimizer_bytes(&options->optimizer, self->layout);
    plan_options.embed_bytes = gpt2_cuda_embed_plan_bytes(batch * length);
    plan_options.matmul_bytes = matmul_options.workspace_bytes;
    /* Once without what the products hold on top: it has the rows of the head, and if even this
     * finds no room nothing need be timed. */
    if (gpt2_cuda_plan_make(&plan_options, self->layout, &self->plan, error) != 0 ||
        check_device_memory(self, 0, error) != 0 ||
        gpt2_attention_prepare(self->type, size, error) != 0 ||
        gpt2_cuda_check(gpt2_cuda_kernels_prepare(), "loading the kernels", error) != 0 ||
        gpt2_cuda_check(gpt2_cuda_checksum_prepare(), "loading the kernels", error) != 0) {
        return -1;
    }
    /* fp32 is for comparisons: the same kernels in every run, and the sums as they are written. */
    matmul_options.tune = matmul_options.fuse = self->type != GPT2_CUDA_F32;
    matmul_options.cache = options->cache;
    matmul_options.notice = take_notice;
    matmul_options.user = self;
    if (gpt2_matmuls_create(&matmul_options, &self->matmuls, error) != 0 ||
        make_products(self, error) != 0) {
        return -1;
    }
    plan_options.matmul_bytes = gpt2_matmuls_bytes(self->matmuls);
    return gpt2_cuda_plan_make(&plan_options, self->layout, &self->plan, error);
}

/* A strategy's memory must be this device's. */
static int take_gradients(gpt2_cuda_replica_t *self, const gpt2_allocator_t *allocator,
                          gpt2_error_t *error)
{
    const size_t bytes = self->plan.gradients;
    struct cudaPointerAttributes attributes;

    if (self->plan.options.is_supplied) return 0;
    self->base.gradients = self->state.gradients;
    if (allocator->alloc != NULL) self->base.gradients = allocator->alloc(allocator->user, bytes);
    if (self->base.gradients == NULL) {
        return gpt2_fail(error, "out of memory: %zu MiB of gradients", bytes >> 20);
    }
    if (self->plan.rows_apart > 0) {
        self->base.rows = self->base.gradients + self->layout->arena_count;
    }
    if (allocator->alloc == NULL) return 0;
    self->allocator = *allocator;
    if (gpt2_cuda_check((int)cudaPointerGetAttributes(&attributes, self->base.gradients),
                        "the gradients' memory", error) != 0) {
        return -1;
    }
    if (attributes.type == cudaMemoryTypeDevice) return 0;
    return gpt2_fail(error,
                     "libdp works on the host, the replica on GPU %s: DP_DEVICE=cuda says "
                     "why libdp does not use it, --device cpu leaves it alone",
                     self->gpu);
}

static int allocate_replica(gpt2_cuda_replica_t *self, const gpt2_replica_options_t *options,
                            gpt2_error_t *error)
{
    const gpt2_cuda_plan_t *plan = &self->plan;
    const int layers = self->layout->shape.layers;
    gpt2_replica_t *base = &self->base;
    size_t all;
    int code = 0;

    self->pass.blocks = calloc((size_t)layers, sizeof(*self->pass.blocks));
    self->block_names = calloc((size_t)layers, sizeof(*self->block_names));
    self->token_counts = calloc((size_t)self->layout->shape.vocab, sizeof(*self->token_counts));
    if (plan->rows_apart > 0) {
        self->token_rows = calloc((size_t)self->layout->shape.vocab, sizeof(*self->token_rows));
        self->looked_up = calloc(plan->rows, sizeof(*self->looked_up));
    }
    if (gpt2_cuda_places_create(self) != 0 || self->pass.blocks == NULL ||
        self->block_names == NULL || self->token_counts == NULL ||
        (plan->rows_apart > 0 && (self->token_rows == NULL || self->looked_up == NULL))) {
        return gpt2_fail(error, "out of memory for the activations' plan");
    }
    for (int i = 0; i < layers; i++) {
        (void)snprintf(self->block_names[i], sizeof(self->block_names[i]), "backward h.%d", i);
    }
    if (check_device_memory(self, plan->matmul, error) != 0) return -1;
    code = (int)cudaMalloc((void **)&self->state_memory, plan->state_bytes);
    if (code == 0) code = (int)cudaMalloc((void **)&self->pass_memory, plan->activation_bytes);
    if (code == 0) code = (int)cudaMalloc((void **)&self->words, sizeof(*self->words));
    if (code == 0) {
        code = (int)cudaMalloc((void **)&self->sum_scratch, GPT2_CUDA_SUM_SCRATCH_BYTES);
    }
    if (gpt2_cuda_check(code, "memory of the plan", error) != 0) return -1;
    gpt2_cuda_plan_place(plan, self->layout, self->state_memory, &self->state);
    gpt2_cuda_plan_place_pass(plan, self->pass_memory, &self->pass);
    if (take_gradients(self, &options->model.gradients, error) != 0) return -1;
    base->weights = self->state.weights;
    base->m = self->state.m;
    base->v = self->state.v;
    code =
        (int)cudaMallocHost((void **)&self->endings, GPT2_CUDA_IN_FLIGHT * sizeof(*self->endings));
    if (code == 0 && plan->rows_apart > 0) {
        code = (int)cudaMallocHost((void **)&self->announced, GPT2_CUDA_IN_FLIGHT *
                                                                  plan->options.lookups *
                                                                  sizeof(*self->announced));
    }
    for (int turn = 0; turn < GPT2_CUDA_IN_FLIGHT && code == 0; turn++) {
        code = (int)cudaMallocHost((void **)&self->upload[turn], plan->upload_bytes);
        if (code == 0) {
            code = (int)cudaEventCreateWithFlags(&self->uploaded[turn],
                                                 cudaEventDisableTiming | cudaEventBlockingSync);
        }
        for (int i = 0; i < GPT2_MARKS && code == 0; i++) {
            code = (int)cudaEventCreateWithFlags(&self->marks[turn][i], cudaEventBlockingSync);
        }
    }
    if (code == 0) code = (int)cudaMemGetInfo(&self->free_bytes, &all);
    return gpt2_cuda_check(code, "pinned memory and events", error);
}

/* Moments and gradients start at zero; decay applies where the layout says so. */
static int initialize(gpt2_cuda_replica_t *self, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->layout;
    const size_t grains = layout->arena_count / GPT2_CUDA_DECAY_GRAIN;
    uint8_t *decays = calloc(grains, 1);
    int code;

    _Static_assert(GPT2_CUDA_DECAY_GRAIN == GPT2_TENSOR_ALIGN, "a grain belongs to one tensor");
    if (decays == NULL) return gpt2_fail(error, "out of memory for %zu decays", grains);
    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        const size_t first = tensor->offset / GPT2_CUDA_DECAY_GRAIN;

        memset(decays + first, tensor->decay,
               (tensor->count + GPT2_CUDA_DECAY_GRAIN - 1) / GPT2_CUDA_DECAY_GRAIN);
    }
    code = (int)cudaMemsetAsync(self->state_memory, 0, self->plan.state_bytes, self->stream);
    if (code == 0 && self->base.gradients != NULL) {
        code = (int)cudaMemsetAsync(self->base.gradients, 0, self->plan.gradients, self->stream);
    }
    if (code == 0) code = (int)cudaMemsetAsync(self->words, 0, sizeof(*self->words), self->stream);
    if (code == 0) {
        code = (int)cudaMemcpyAsync(self->state.decays, decays, grains, cudaMemcpyHostToDevice,
                                    self->stream);
    }
    if (code == 0) code = (int)cudaStreamSynchronize(self->stream);
    free(decays);
    if (gpt2_cuda_check(code, "zeros", error) != 0) return -1;
    if (gpt2_cuda_places_fill(self, error) != 0) return -1;
    return gpt2_cuda_optimizer_fill(self, error);
}

int gpt2_replica_cuda_create(const gpt2_replica_options_t *options, gpt2_replica_t **out,
                             gpt2_error_t *error)
{
    const gpt2_model_options_t *model = &options->model;
    gpt2_cuda_replica_t *self;

    if (gpt2_shape_check(&model->shape, error) != 0) return -1;
    if (model->length < 1 || model->length > model->shape.context) {
        return gpt2_fail(error, "sequence length %d is out of range 1 to the context of %d",
                         model->length, model->shape.context);
    }
    self = calloc(1, sizeof(*self));
    if (self == NULL) return gpt2_fail(error, "out of memory for a replica");
    self->base.ops = &OPS;
    self->base.settings = options->optimizer;
    self->base.room = model->batch;
    self->length = (size_t)model->length;
    self->type = strcmp(options->precision, "fp32") == 0   ? GPT2_CUDA_F32
                 : strcmp(options->precision, "fp16") == 0 ? GPT2_CUDA_F16
                                                           : GPT2_CUDA_BF16;
    if (gpt2_layout_create(&model->shape, &self->layout, error) != 0) goto fail;
    self->base.layout = self->layout;
    if (find_gpu(self, error) != 0) goto fail;
    if (plan_memory(self, options, error) != 0) goto fail;
    if (gpt2_cuda_check((int)cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking),
                        "a stream", error) != 0) {
        goto fail;
    }
    self->base.stream = self->stream;
    if (allocate_replica(self, options, error) != 0) goto fail;
    if (load_products(self, error) != 0) goto fail;
    if (initialize(self, error) != 0) goto fail;
    *out = &self->base;
    return 0;
fail:
    cuda_destroy(&self->base);
    return -1;
}
