/*
 * world.c - queues between negotiators, and what must hold of everything they put out.
 */
#include "world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void world_violation(world_t *world, const char *format, ...)
{
    char text[2 * WORLD_TEXT_MAX];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    world->options.violated(world->options.user, text);
    abort();
}

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count > 0 ? count : 1, bytes);

    if (memory == NULL) {
        fprintf(stderr, "out of memory in the simulator itself\n");
        exit(2);
    }
    return memory;
}

const char *world_name(int tensor, char name[32])
{
    snprintf(name, 32, "h.%d.weight", tensor);
    return name;
}

void world_signature(dp_signature_t *signature, dp_signature_part_t *part, uint64_t count)
{
    memset(signature, 0, sizeof(*signature));
    part->count = count;
    part->dtype = DP_F32;
    signature->wire = DP_WIRE_NONE;
    signature->root = -1;
    signature->prescale = signature->postscale = 1.0;
    signature->part_count = 1;
    signature->parts = part;
}

/* ---- Life ------------------------------------------------------------------------------- */

static void init_topology(world_t *world)
{
    int size = world->options.size, hosts = world->options.hosts;
    char **names = allocate((size_t)size, sizeof(*names));

    for (int i = 0; i < size; i++) {
        names[i] = allocate(16, 1);
        snprintf(names[i], 16, "host%d", i * hosts / size);
    }
    if (dp_topology_init(&world->topology, (const char *const *)names, size) != DP_OK)
        world_violation(world, "no topology");
    for (int i = 0; i < size; i++)
        free(names[i]);
    free(names);
}

static void init_rank(world_t *world, int rank)
{
    const world_options_t *options = &world->options;
    world_rank_t *self = &world->ranks[rank];
    dp_negotiator_options_t negotiator = {rank,
                                          options->size,
                                          &world->topology,
                                          &self->node,
                                          options->hold_ns,
                                          options->fusion_bytes,
                                          options->stall_warn_ns,
                                          options->stall_limit_ns};

    if (dp_tree_node_init(&self->node, &world->topology, options->arity, rank) != DP_OK ||
        dp_negotiator_create(&negotiator, &self->negotiator) != DP_OK)
        world_violation(world, "no negotiator");
    self->requests = allocate((size_t)options->tensors, sizeof(*self->requests));
    self->submitted = allocate((size_t)options->tensors, sizeof(*self->submitted));
    for (int t = 0; t < options->tensors; t++) {
        self->requests[t].rank = rank;
        self->requests[t].tensor = t;
    }
}

void world_init(world_t *world, const world_options_t *options)
{
    int size = options->size;

    memset(world, 0, sizeof(*world));
    world->options = *options;
    init_topology(world);
    world->ranks = allocate((size_t)size, sizeof(*world->ranks));
    world->edges = allocate((size_t)size * 2, sizeof(*world->edges));
    world->outcomes =
        allocate((size_t)options->tensors * (size_t)options->occurrences, sizeof(*world->outcomes));
    for (int i = 0; i < size; i++)
        init_rank(world, i);
    for (int i = 1; i < size; i++) {
        int parent = world->ranks[i].node.parent;
        world_edge_t *up = &world->edges[world->edge_count++];
        world_edge_t *down = &world->edges[world->edge_count++];

        up->from = down->to = i;
        up->to = down->from = parent;
        up->last = &up->first;
        down->last = &down->first;
    }
}

static void drop_messages(world_t *world, world_edge_t *edge, size_t keep)
{
    world_message_t **at = &edge->first;

    while (keep-- > 0 && *at != NULL)
        at = &(*at)->next;
    while (*at != NULL) {
        world_message_t *next = (*at)->next;

        free(*at);
        *at = next;
        world->under_way--;
    }
    edge->last = at;
}

void world_fini(world_t *world)
{
    for (int i = 0; i < world->edge_count; i++)
        drop_messages(world, &world->edges[i], 0);
    for (int i = 0; i < world->options.size; i++) {
        dp_negotiator_destroy(world->ranks[i].negotiator);
        dp_tree_node_fini(&world->ranks[i].node);
        free(world->ranks[i].requests);
        free(world->ranks[i].submitted);
    }
    free(world->ranks);
    free(world->edges);
    free(world->outcomes);
    dp_topology_fini(&world->topology);
}

/* ---- Messages --------------------------------------------------------------------------- */

int world_is_deaf(const world_t *world, int rank)
{
    const world_rank_t *self = &world->ranks[rank];

    return self->is_dead || self->is_fatal || self->is_finished;
}

static int edge_between(const world_t *world, int from, int to)
{
    int child = world->ranks[from].node.parent == to ? from : to;
    int edge = 2 * (child - 1) + (child == from ? 0 : 1);

    if (child == 0 || world->edges[edge].from != from || world->edges[edge].to != to) return -1;
    return edge;
}

static void push(world_t *world, world_edge_t *edge, world_message_t *message)
{
    if (world->options.delay != NULL) {
        message->deliver_ns = world->options.delay(world->options.user, edge);
        if (message->deliver_ns <= edge->last_ns) message->deliver_ns = edge->last_ns + 1;
        edge->last_ns = message->deliver_ns;
    }
    message->next = NULL;
    *edge->last = message;
    edge->last = &message->next;
    world->under_way++;
}

static void send_message(world_t *world, int from, const dp_output_t *out)
{
    int index = edge_between(world, from, out->to);
    world_message_t *message = allocate(1, sizeof(*message) + out->bytes);

    if (index < 0) world_violation(world, "rank %d sends to rank %d, no neighbour", from, out->to);
    message->bytes = out->bytes;
    memcpy(message->data, out->data, out->bytes);
    world->messages++;
    world->bytes += out->bytes;
    world->edges[index].sent++;
    push(world, &world->edges[index], message);
}

void world_deliver(world_t *world, int index, uint64_t now_ns)
{
    world_edge_t *edge = &world->edges[index];
    world_message_t *message = edge->first;
    world_rank_t *receiver = &world->ranks[edge->to];

    edge->first = message->next;
    if (edge->first == NULL) edge->last = &edge->first;
    world->under_way--;
    if (!receiver->is_dead && message->is_loss)
        dp_negotiator_peer_lost(receiver->negotiator, edge->from, "connection lost", now_ns);
    if (!receiver->is_dead && !message->is_loss)
        dp_negotiator_message(receiver->negotiator, edge->from, message->data, message->bytes,
                              now_ns);
    free(message);
}

void world_kill(world_t *world, int rank, size_t keep)
{
    world->ranks[rank].is_dead = 1;
    for (int i = 0; i < world->edge_count; i++) {
        world_edge_t *edge = &world->edges[i];
        world_message_t *loss;

        if (edge->from != rank) continue;
        drop_messages(world, edge, keep);
        loss = allocate(1, sizeof(*loss));
        loss->is_loss = 1;
        push(world, edge, loss);
    }
}

/* ---- Requests --------------------------------------------------------------------------- */

void world_submit(world_t *world, int rank, int tensor, uint64_t count, int is_urgent, float absmax,
                  uint64_t now_ns)
{
    world_rank_t *self = &world->ranks[rank];
    world_request_t *request = &self->requests[tensor];
    dp_signature_part_t part;
    dp_signature_t signature;
    dp_submission_t submission;
    char name[32];
    dp_status_t status;

    world_signature(&signature, &part, count);
    submission = (dp_submission_t){.name = world_name(tensor, name),
                                   .signature = &signature,
                                   .in_place = rank % 2 == 0,
                                   .last_absmax = absmax,
                                   .is_urgent = is_urgent,
                                   .request = request};
    if (request->is_pending) world_violation(world, "the test submits a pending tensor");
    status = dp_negotiator_submit(self->negotiator, &submission, now_ns);
    if (status != DP_OK) {
        if (world_is_deaf(world, rank) || self->is_dead) return;
        /* The world may have ended in an input whose outputs were not taken yet. */
        if (status == DP_ERR_PEER_LOST || status == DP_ERR_ABORTED || status == DP_ERR_STALLED ||
            status == DP_ERR_ORDER)
            return;
        world_violation(world, "rank %d: submit says %s", rank, dp_status_string(status));
    }
    request->occurrence = self->submitted[tensor]++;
    request->is_pending = 1;
    self->pending++;
}

/* A request comes back: exactly once, and ended as on every other rank. */
static world_outcome_t *hand_back(world_t *world, int rank, void *pointer, dp_status_t status)
{
    world_request_t *request = pointer;
    world_rank_t *self = &world->ranks[rank];
    world_outcome_t *outcome;

    if (request < self->requests || request >= self->requests + world->options.tensors)
        world_violation(world, "rank %d is handed a request that is not its own", rank);
    if (!request->is_pending)
        world_violation(world, "rank %d, tensor %d: handed back twice", rank, request->tensor);
    request->is_pending = 0;
    self->pending--;
    outcome = &world->outcomes[request->tensor * world->options.occurrences + request->occurrence];
    if (outcome->is_known && outcome->status != status)
        world_violation(world, "tensor %d, occurrence %d: %s on rank %d, %s elsewhere",
                        request->tensor, request->occurrence, dp_status_string(status), rank,
                        dp_status_string(outcome->status));
    return outcome;
}

static void take_launch(world_t *world, int rank, const dp_output_t *out)
{
    world_rank_t *self = &world->ranks[rank];

    if (out->sequence != self->launches + 1)
        world_violation(world, "rank %d: launch %llu after %llu", rank,
                        (unsigned long long)out->sequence, (unsigned long long)self->launches);
    self->launches = out->sequence;
    if (out->entry_count == 0) world_violation(world, "rank %d: an empty launch", rank);
    for (size_t i = 0; i < out->entry_count; i++) {
        const dp_launch_entry_t *entry = &out->entries[i];
        world_request_t *request = entry->request;
        world_outcome_t *outcome = hand_back(world, rank, request, DP_OK);
        /* Its place in the order: the launch, and the place in it. */
        uint64_t place = out->sequence << 20 | i;

        for (int r = 0; r < world->options.size; r++) {
            if (world->ranks[r].submitted[request->tensor] <= request->occurrence)
                world_violation(world, "rank %d launches tensor %d, rank %d has not submitted it",
                                rank, request->tensor, r);
        }
        if (!outcome->is_known) {
            outcome->sequence = place;
            outcome->absmax = entry->last_absmax;
            outcome->in_place = entry->in_place;
        }
        outcome->is_known = 1;
        if (outcome->sequence != place || outcome->in_place != entry->in_place ||
            memcmp(&outcome->absmax, &entry->last_absmax, sizeof(float)) != 0)
            world_violation(world, "rank %d: tensor %d launched otherwise than elsewhere", rank,
                            request->tensor);
    }
    if (world->options.launched != NULL)
        world->options.launched(world->options.user, rank, out->sequence);
}

static void take_failure(world_t *world, int rank, const dp_output_t *out)
{
    world_rank_t *self = &world->ranks[rank];
    world_outcome_t *outcome;

    if (out->status == DP_OK) world_violation(world, "rank %d: a failure says DP_OK", rank);
    outcome = hand_back(world, rank, out->request, out->status);
    outcome->is_known = 1;
    outcome->status = out->status;
    self->failures++;
    self->last_failure_status = out->status;
    snprintf(self->last_failure, sizeof(self->last_failure), "%s", out->text);
}

static void take_fatal(world_t *world, int rank, const dp_output_t *out)
{
    world_rank_t *self = &world->ranks[rank];

    if (self->is_fatal) world_violation(world, "rank %d: the world ends twice", rank);
    self->is_fatal = 1;
    self->fatal_status = out->status;
    self->fatal_culprit = out->culprit;
    snprintf(self->fatal_text, sizeof(self->fatal_text), "%s", out->text);
}

void world_drain(world_t *world, int rank)
{
    world_rank_t *self = &world->ranks[rank];
    dp_output_t out;

    if (self->is_dead) return;
    while (dp_negotiator_output(self->negotiator, &out)) {
        if (self->is_fatal || self->is_finished)
            world_violation(world, "rank %d: output %d after its last", rank, (int)out.kind);
        switch (out.kind) {
        case DP_OUTPUT_JOINED:
            break;
        case DP_OUTPUT_SEND:
            send_message(world, rank, &out);
            break;
        case DP_OUTPUT_LAUNCH:
            take_launch(world, rank, &out);
            break;
        case DP_OUTPUT_FAIL:
            take_failure(world, rank, &out);
            break;
        case DP_OUTPUT_FATAL:
            take_fatal(world, rank, &out);
            break;
        case DP_OUTPUT_WARN:
            self->warnings++;
            snprintf(self->last_warning, sizeof(self->last_warning), "%s", out.text);
            break;
        case DP_OUTPUT_FINISHED:
            self->is_finished = 1;
            if (self->pending > 0) world_violation(world, "rank %d: goodbye with requests", rank);
            break;
        }
    }
}
