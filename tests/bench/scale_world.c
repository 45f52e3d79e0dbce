/*
 * scale_world.c - virtual time, threads that are busy, and messages between negotiators.
 *
 * A rank's thread does what the coordinator's loop does: it takes every message that is there, one
 * after the other, and only then what the state machine puts out. Every rank is a real negotiator:
 * nothing is replayed or left out. They share one topology, as sixty-five thousand copies of a
 * table over sixty-five thousand ranks would not fit; everything else a rank has of its own.
 */
#include "scale_world.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

#define EVENTS_PER_RANK 1000 /* for one batch; more than that do not come to an end */
#define PROGRESS_NS 3000000000u

void scale_die(const char *format, ...)
{
    va_list arguments;

    fflush(stdout);
    fputs("scale: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

void scale_progress(scale_world_t *world, const char *what, int done, int of)
{
    uint64_t now_ns = dp_now_ns();

    if (now_ns - world->said_ns < PROGRESS_NS) return;
    world->said_ns = now_ns;
    fprintf(stderr, "scale: %d ranks: %s, %d of %d\n", world->options.size, what, done, of);
}

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);

    if (memory == NULL) scale_die("out of memory for %zu x %zu bytes", count, bytes);
    return memory;
}

/* ---- Memory --------------------------------------------------------------------------------- */

/* Linked with --wrap: who is charged for what is allocated now; NULL: nobody. */
static int64_t *charged;

#pragma GCC visibility push(default)
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void __wrap_free(void *memory);
char *__wrap_strdup(const char *text);
#pragma GCC visibility pop

/* With the word before each block in which malloc keeps its size. */
static void charge(void *memory, int sign)
{
    if (charged == NULL || memory == NULL) return;
    *charged += sign * (int64_t)(malloc_usable_size(memory) + sizeof(size_t));
}

void *__wrap_malloc(size_t bytes)
{
    void *memory = __real_malloc(bytes);

    charge(memory, 1);
    return memory;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    void *memory = __real_calloc(count, bytes);

    charge(memory, 1);
    return memory;
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    void *grown;

    charge(memory, -1);
    grown = __real_realloc(memory, bytes);
    if (grown == NULL) scale_die("out of memory for %zu bytes", bytes);
    charge(grown, 1);
    return grown;
}

void __wrap_free(void *memory)
{
    charge(memory, -1);
    __real_free(memory);
}

char *__wrap_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = __wrap_malloc(bytes);

    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

double scale_bytes(const scale_world_t *world, int *most)
{
    int64_t sum = 0;

    *most = 0;
    for (int r = 0; r < world->options.size; r++) {
        sum += world->ranks[r].allocated;
        if (world->ranks[r].allocated > world->ranks[*most].allocated) *most = r;
    }
    return (double)sum / world->options.size;
}

/* ---- Events --------------------------------------------------------------------------------- */

static int is_before(const scale_event_t *a, const scale_event_t *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->number < b->number;
}

static void push_event(scale_world_t *world, uint64_t at_ns, int rank, scale_message_t *message)
{
    scale_event_t event = {at_ns, world->event_number++, rank, message};
    size_t i = world->heap_count++;

    if (i == world->heap_room) scale_die("more events at once than %zu", i);
    while (i > 0 && is_before(&event, &world->heap[(i - 1) / 2])) {
        world->heap[i] = world->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    world->heap[i] = event;
}

static scale_event_t pop_event(scale_world_t *world)
{
    scale_event_t first = world->heap[0], last = world->heap[--world->heap_count];
    size_t i = 0, count = world->heap_count;

    for (size_t child = 1; child < count; child = 2 * i + 1) {
        if (child + 1 < count && is_before(&world->heap[child + 1], &world->heap[child])) child++;
        if (!is_before(&world->heap[child], &last)) break;
        world->heap[i] = world->heap[child];
        i = child;
    }
    world->heap[i] = last;
    return first;
}

static void wake_soon(scale_world_t *world, int rank)
{
    scale_rank_t *self = &world->ranks[rank];

    if (self->will_run) return;
    self->will_run = 1;
    push_event(world, dp_max(world->now_ns, self->busy_ns), rank, NULL);
}

void scale_wake(scale_world_t *world, int rank)
{
    wake_soon(world, rank);
}

/* ---- Outputs -------------------------------------------------------------------------------- */

static uint64_t cost_of(const scale_world_t *world, size_t bytes)
{
    return world->options.message_ns + (uint64_t)(world->options.byte_ns * (double)bytes);
}

static void frame_release(scale_frame_t *frame)
{
    if (frame != NULL && --frame->users == 0) free(frame);
}

/* All who are at the same point say the same: what is under way would else take gigabytes. */
static scale_frame_t *frame_of(scale_world_t *world, const dp_output_t *out)
{
    scale_frame_t *frame = world->newest;

    if (frame == NULL || frame->bytes != out->bytes ||
        memcmp(frame->data, out->data, out->bytes) != 0) {
        frame_release(frame);
        frame = malloc(sizeof(*frame) + out->bytes);
        if (frame == NULL) scale_die("out of memory for a frame");
        frame->users = 1;
        frame->bytes = out->bytes;
        memcpy(frame->data, out->data, out->bytes);
        world->newest = frame;
    }
    frame->users++;
    return frame;
}

static void send_message(scale_world_t *world, int rank, const dp_output_t *out)
{
    scale_rank_t *self = &world->ranks[rank];
    scale_message_t *message = malloc(sizeof(*message));
    int is_local = world->topology.node[rank] == world->topology.node[out->to];

    if (message == NULL) scale_die("out of memory for a message");
    message->next = NULL;
    message->from = rank;
    message->frame = frame_of(world, out);
    self->busy_ns += cost_of(world, out->bytes);
    self->sent++;
    self->bytes += out->bytes;
    push_event(world,
               self->busy_ns +
                   (is_local ? world->options.local_latency_ns : world->options.latency_ns),
               out->to, message);
}

/* The rank has got what it waited for, or a part of it. */
static void note(scale_world_t *world, scale_rank_t *self)
{
    self->waited = dp_max(self->waited, self->received - self->received_before);
    world->last_ns = dp_max(world->last_ns, self->busy_ns);
}

static void take_launch(scale_world_t *world, int rank, const dp_output_t *out)
{
    scale_rank_t *self = &world->ranks[rank];

    for (size_t i = 0; i < out->entry_count; i++) {
        const uint8_t *request = out->entries[i].request;

        if (request < world->requests || request > world->requests + world->options.tensors) {
            scale_die("%d ranks: rank %d is handed a request that is not its own",
                      world->options.size, rank);
        }
        self->order = (self->order ^ (uint64_t)(request - world->requests)) * 1099511628211u;
        self->order = (self->order ^ out->sequence << 16 ^ i) * 1099511628211u;
    }
    self->launched += (uint32_t)out->entry_count;
    note(world, self);
}

static void take_output(scale_world_t *world, int rank, const dp_output_t *out)
{
    scale_rank_t *self = &world->ranks[rank];

    switch (out->kind) {
    case DP_OUTPUT_SEND:
        send_message(world, rank, out);
        break;
    case DP_OUTPUT_LAUNCH:
        take_launch(world, rank, out);
        break;
    case DP_OUTPUT_FINISHED:
        self->noted++;
        note(world, self);
        break;
    case DP_OUTPUT_JOINED:
    case DP_OUTPUT_FAIL:
    case DP_OUTPUT_FATAL:
    case DP_OUTPUT_WARN:
        scale_die("%d ranks: rank %d: output %d: %s", world->options.size, rank, (int)out->kind,
                  out->text != NULL ? out->text : "");
    }
}

/* Data planes take no time here: what is launched is over at once. */
static void drain(scale_world_t *world, int rank)
{
    scale_rank_t *self = &world->ranks[rank];
    dp_output_t out;

    charged = &self->allocated;
    while (dp_negotiator_output(self->negotiator, &out)) {
        charged = NULL;
        take_output(world, rank, &out);
        charged = &self->allocated;
        if (out.kind == DP_OUTPUT_LAUNCH)
            dp_negotiator_launch_done(self->negotiator, out.sequence, self->busy_ns);
    }
    charged = NULL;
}

/* ---- The loop ------------------------------------------------------------------------------- */

static void take_message(scale_world_t *world, int rank)
{
    scale_rank_t *self = &world->ranks[rank];
    scale_message_t *message = self->first;
    scale_frame_t *frame = message->frame;
    dp_status_t status;

    self->first = message->next;
    if (self->first == NULL) self->last = &self->first;
    self->busy_ns += cost_of(world, frame->bytes);
    self->received++;
    self->bytes += frame->bytes;
    charged = &self->allocated;
    status = dp_negotiator_message(self->negotiator, message->from, frame->data, frame->bytes,
                                   self->busy_ns);
    charged = NULL;
    if (status != DP_OK) {
        scale_die("%d ranks: rank %d does not take a message of rank %d", world->options.size, rank,
                  message->from);
    }
    frame_release(frame);
    free(message);
}

static void work(scale_world_t *world, int rank)
{
    scale_rank_t *self = &world->ranks[rank];

    self->busy_ns = world->now_ns;
    self->will_run = 0;
    if (self->first == NULL) {
        drain(world, rank);
        return;
    }
    take_message(world, rank);
    wake_soon(world, rank);
}

static void arrive(scale_world_t *world, int rank, scale_message_t *message)
{
    scale_rank_t *self = &world->ranks[rank];

    *self->last = message;
    self->last = &message->next;
    wake_soon(world, rank);
}

void scale_run(scale_world_t *world, uint64_t until_ns)
{
    uint64_t limit = (uint64_t)EVENTS_PER_RANK * (uint64_t)world->options.size, events = 0;

    while (world->heap_count > 0 && world->heap[0].at_ns < until_ns) {
        scale_event_t event = pop_event(world);

        world->now_ns = event.at_ns;
        if (event.message != NULL) {
            arrive(world, event.rank, event.message);
        } else {
            work(world, event.rank);
        }
        if (++events > limit)
            scale_die("%d ranks: it does not come to an end", world->options.size);
    }
    if (until_ns != UINT64_MAX) world->now_ns = until_ns;
}

/* ---- Phases --------------------------------------------------------------------------------- */

void scale_begin(scale_world_t *world)
{
    if (world->heap_count > 0) scale_die("a phase begins in the middle of another");
    for (int r = 0; r < world->options.size; r++) {
        scale_rank_t *self = &world->ranks[r];

        world->now_ns = dp_max(world->now_ns, self->busy_ns);
        self->sent = self->received = self->received_before = self->waited = self->launched =
            self->noted = 0;
        self->bytes = self->order = 0;
    }
    world->last_ns = 0;
}

static void submit_one(scale_world_t *world, int rank, int tensor)
{
    scale_rank_t *self = &world->ranks[rank];
    dp_signature_part_t part;
    dp_signature_t signature;
    char name[32];
    dp_submission_t submission = {.name = world_name(tensor, name),
                                  .signature = &signature,
                                  .in_place = 1,
                                  .last_absmax = -1.0f,
                                  .request = world->requests + tensor};
    dp_status_t status;

    world_signature(&signature, &part, 768);
    if (tensor == world->options.tensors) {
        signature.collective = DP_COLLECTIVE_BARRIER;
        signature.part_count = 0;
    }
    charged = &self->allocated;
    status = dp_negotiator_submit(self->negotiator, &submission, world->now_ns);
    charged = NULL;
    if (status != DP_OK) {
        scale_die("%d ranks: rank %d: submit says %s", world->options.size, rank,
                  dp_status_string(status));
    }
}

void scale_submit(scale_world_t *world, int first, int count)
{
    for (int r = 0; r < world->options.size; r++) {
        for (int t = first; t < first + count; t++)
            submit_one(world, r, t);
        world->ranks[r].received_before = world->ranks[r].received;
        scale_wake(world, r);
        if (r % 1024 == 0) scale_progress(world, "submitting, rank", r, world->options.size);
    }
}

void scale_end(scale_world_t *world, const char *phase, uint32_t launched, uint32_t noted,
               uint64_t from_ns, scale_cost_t *cost)
{
    uint64_t messages = 0, bytes = 0;
    int size = world->options.size;

    *cost = (scale_cost_t){.root_messages = world->ranks[0].sent + world->ranks[0].received,
                           .root_bytes = world->ranks[0].bytes,
                           .us = (double)(world->last_ns - from_ns) * 1e-3};
    for (int r = 0; r < size; r++) {
        const scale_rank_t *self = &world->ranks[r];

        if (self->launched != launched || self->noted != noted) {
            scale_die("%d ranks, %s: nothing is under way, and rank %d has launched %u tensors of "
                      "%u, noted %u events of %u",
                      size, phase, r, self->launched, launched, self->noted, noted);
        }
        if (self->order != world->ranks[0].order) {
            scale_die("%d ranks, %s: rank %d has launched in another order than rank 0", size,
                      phase, r);
        }
        messages += self->sent + self->received;
        bytes += self->bytes;
        cost->max_messages = dp_max(cost->max_messages, self->sent + self->received);
        cost->waited = dp_max(cost->waited, self->waited);
    }
    cost->mean_messages = (double)messages / size;
    cost->mean_bytes = (double)bytes / size;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void init_topology(scale_world_t *world)
{
    int size = world->options.size;
    char(*rooms)[16] = allocate((size_t)size, sizeof(*rooms));
    const char **names = allocate((size_t)size, sizeof(*names));

    for (int r = 0; r < size; r++) {
        snprintf(rooms[r], sizeof(rooms[r]), "h%d", r / world->options.ranks_per_node);
        names[r] = rooms[r];
    }
    if (dp_topology_init(&world->topology, names, size) != DP_OK) scale_die("no topology");
    free(names);
    free(rooms);
}

static void init_rank(scale_world_t *world, int rank)
{
    scale_rank_t *self = &world->ranks[rank];
    dp_negotiator_options_t options = {.rank = rank,
                                       .size = world->options.size,
                                       .topology = &world->topology,
                                       .links = &self->links,
                                       .fusion_bytes = (size_t)64 << 20};

    self->last = &self->first;
    charged = &self->allocated;
    if (dp_tree_links_init(&self->links, &world->topology, world->options.arity, rank) != DP_OK ||
        dp_negotiator_create(&options, &self->negotiator) != DP_OK)
        scale_die("%d ranks: rank %d cannot be made", world->options.size, rank);
    charged = NULL;
}

void scale_world_init(scale_world_t *world, const scale_options_t *options)
{
    int size = options->size;

    memset(world, 0, sizeof(*world));
    world->options = *options;
    world->said_ns = dp_now_ns();
    init_topology(world);
    world->ranks = allocate((size_t)size, sizeof(*world->ranks));
    world->requests = allocate((size_t)options->tensors + 1, 1);
    world->heap_room = 16 * (size_t)size + 1024;
    world->heap = allocate(world->heap_room, sizeof(*world->heap));
    for (int r = 0; r < size; r++) {
        init_rank(world, r);
        if (r % 256 == 0) scale_progress(world, "making rank", r, size);
    }
}

void scale_world_fini(scale_world_t *world)
{
    frame_release(world->newest);
    for (int r = 0; r < world->options.size; r++) {
        dp_negotiator_destroy(world->ranks[r].negotiator);
        dp_tree_links_fini(&world->ranks[r].links);
    }
    free(world->ranks);
    free(world->requests);
    free(world->heap);
    dp_topology_fini(&world->topology);
}
