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
    signature->root = signature->peer = -1;
    signature->prescale = signature->postscale = 1.0;
    signature->part_count = 1;
    signature->parts = part;
}

world_tensor_t world_kind(const world_t *world, int tensor)
{
    world_tensor_t kind = {0, DP_COLLECTIVE_ALLREDUCE, -1, -1, tensor};

    return world->options.kinds != NULL ? world->options.kinds[tensor] : kind;
}

static int group_count(const world_t *world)
{
    return world->options.group_count > 0 ? world->options.group_count : 1;
}

/* The rank's number in the group, -1: not a member. */
static int index_in(const world_t *world, int group, int rank)
{
    if (group == 0) return rank;
    for (int i = 0; i < world->options.groups[group].count; i++) {
        if (world->options.groups[group].ranks[i] == rank) return i;
    }
    return -1;
}

int world_has_member(const world_t *world, int group, int rank)
{
    return index_in(world, group, rank) >= 0;
}

int world_takes_part(const world_t *world, int tensor, int rank)
{
    world_tensor_t kind = world_kind(world, tensor);
    int index = index_in(world, kind.group, rank);

    if (kind.collective != DP_COLLECTIVE_SEND) return index >= 0;
    return index >= 0 && (index == kind.root || index == kind.peer);
}

int world_below(const world_t *world, int edge, int tensor)
{
    int top = dp_max(world->edges[edge].from, world->edges[edge].to), found = 0;

    for (int rank = top; rank < world->options.size; rank++) {
        int at = rank;

        if (!world_takes_part(world, tensor, rank)) continue;
        while (at > top)
            at = world->ranks[at].links.parent;
        found += at == top;
    }
    return found;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void init_topology(world_t *world)
{
    int size = world->options.size, nodes = world->options.nodes;
    char **names = allocate((size_t)size, sizeof(*names));

    for (int i = 0; i < size; i++) {
        names[i] = allocate(16, 1);
        snprintf(names[i], 16, "host%d", i * nodes / size);
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
                                          &self->links,
                                          options->hold_ns,
                                          options->fusion_bytes,
                                          options->stall_warn_ns,
                                          options->stall_limit_ns,
                                          options->finalize_limit_ns,
                                          options->names_kept};

    if (dp_tree_links_init(&self->links, &world->topology, options->arity, rank) != DP_OK ||
        dp_negotiator_create(&negotiator, &self->negotiator) != DP_OK)
        world_violation(world, "no negotiator");
    self->requests = allocate((size_t)options->tensors, sizeof(*self->requests));
    self->submitted = allocate((size_t)options->tensors, sizeof(*self->submitted));
    self->skipped =
        allocate((size_t)options->tensors * (size_t)options->occurrences, sizeof(*self->skipped));
    self->joins = allocate((size_t)group_count(world), sizeof(*self->joins));
    self->alive = allocate((size_t)group_count(world), sizeof(*self->alive));
    self->group_indices = allocate((size_t)group_count(world), sizeof(*self->group_indices));
    self->in_place =
        allocate((size_t)options->tensors * (size_t)options->occurrences, sizeof(*self->in_place));
    self->priorities = allocate((size_t)options->tensors * (size_t)options->occurrences,
                                sizeof(*self->priorities));
    self->magnitudes =
        allocate((size_t)options->tensors * (size_t)options->occurrences, sizeof(float));
    self->uids = allocate((size_t)group_count(world), sizeof(*self->uids));
    self->pending_in = allocate((size_t)group_count(world), sizeof(*self->pending_in));
    self->alive[0] = 1;
    for (int t = 0; t < options->tensors; t++) {
        self->requests[t].rank = rank;
        self->requests[t].tensor = t;
        self->requests[t].group = world_kind(world, t).group;
    }
    for (int g = 0; g < group_count(world); g++) {
        self->joins[g].rank = rank;
        self->joins[g].tensor = -1;
        self->joins[g].group = g;
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
    world->joined = allocate((size_t)group_count(world) * (size_t)(options->occurrences + 1),
                             sizeof(*world->joined));
    for (int i = 0; i < size; i++)
        init_rank(world, i);
    for (int i = 1; i < size; i++) {
        int parent = world->ranks[i].links.parent;
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
        dp_tree_links_fini(&world->ranks[i].links);
        free(world->ranks[i].requests);
        free(world->ranks[i].submitted);
        free(world->ranks[i].skipped);
        free(world->ranks[i].joins);
        free(world->ranks[i].alive);
        free(world->ranks[i].uids);
        free(world->ranks[i].group_indices);
        free(world->ranks[i].magnitudes);
        free(world->ranks[i].in_place);
        free(world->ranks[i].priorities);
        free(world->ranks[i].pending_in);
        free(world->ranks[i].identities);
        free(world->ranks[i].order);
    }
    free(world->ranks);
    free(world->edges);
    free(world->outcomes);
    free(world->joined);
    dp_topology_fini(&world->topology);
}

/* ---- Messages ------------------------------------------------------------------------------- */

int world_is_deaf(const world_t *world, int rank)
{
    const world_rank_t *self = &world->ranks[rank];

    return self->is_dead || self->is_fatal || self->is_finished;
}

static int edge_between(const world_t *world, int from, int to)
{
    int child = world->ranks[from].links.parent == to ? from : to;
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

void world_settle(world_t *world, uint64_t now_ns)
{
    for (int r = 0; r < world->options.size; r++)
        world_drain(world, r);
    while (world->under_way > 0) {
        for (int e = 0; e < world->edge_count; e++) {
            while (world->edges[e].first != NULL) {
                world_deliver(world, e, now_ns);
                world_drain(world, world->edges[e].to);
            }
        }
    }
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

/* ---- Requests ------------------------------------------------------------------------------- */

/* The signature that ranks of the group submit; the caller keeps part. */
static void signature_of(const world_t *world, int tensor, uint64_t count,
                         dp_signature_t *signature, dp_signature_part_t *part)
{
    world_tensor_t kind = world_kind(world, tensor);

    world_signature(signature, part, count);
    signature->collective = kind.collective;
    signature->root = kind.root;
    signature->peer = kind.peer;
    if (kind.collective == DP_COLLECTIVE_BARRIER ||
        kind.collective == DP_COLLECTIVE_GROUP_DESTROY ||
        kind.collective == DP_COLLECTIVE_GROUP_CREATE)
        signature->part_count = 0;
    if (kind.collective != DP_COLLECTIVE_GROUP_CREATE) return;
    signature->member_count = (uint32_t)world->options.groups[kind.group].count;
    signature->members = world->options.groups[kind.group].ranks;
}

/* Hands a submission over; 0: it was not taken, as the world has ended. */
static int hand_over(world_t *world, int rank, const dp_submission_t *submission, uint64_t now_ns)
{
    world_rank_t *self = &world->ranks[rank];
    world_request_t *request = submission->request;
    dp_status_t status;

    if (request->is_pending) world_violation(world, "the test submits a pending tensor");
    status = dp_negotiator_submit(self->negotiator, submission, now_ns);
    if (status != DP_OK) {
        if (world_is_deaf(world, rank) || self->is_dead) return 0;
        /* The world may have ended in an input whose outputs were not taken yet. */
        if (status == DP_ERR_PEER_LOST || status == DP_ERR_ABORTED || status == DP_ERR_STALLED ||
            status == DP_ERR_ORDER)
            return 0;
        world_violation(world, "rank %d: submit says %s", rank, dp_status_string(status));
    }
    request->is_pending = 1;
    self->pending++;
    self->pending_in[request->group]++;
    return 1;
}

/* Where this rank's tensors lie. */
static int is_in_place(int rank)
{
    return rank % 2 == 0;
}

void world_submit(world_t *world, int rank, int tensor, uint64_t count, int is_urgent, float absmax,
                  uint64_t now_ns)
{
    world_rank_t *self = &world->ranks[rank];
    world_request_t *request = &self->requests[tensor];
    world_tensor_t kind = world_kind(world, tensor);
    int is_create = kind.collective == DP_COLLECTIVE_GROUP_CREATE;
    dp_signature_part_t part;
    dp_signature_t signature;
    dp_submission_t submission;
    char name[32];
    int place;

    signature_of(world, tensor, count, &signature, &part);
    submission = (dp_submission_t){.group = is_create ? DP_GROUP_UNBORN : self->uids[kind.group],
                                   .name = world_name(kind.name, name),
                                   .signature = &signature,
                                   .in_place = is_in_place(rank),
                                   .last_absmax = absmax,
                                   .priority = self->priority,
                                   .is_urgent = is_urgent,
                                   .timeout_ns = world->options.timeout_ns,
                                   .request = request};
    if (!is_create && !self->alive[kind.group])
        world_violation(world, "the test submits to a group that is not made");
    if (!hand_over(world, rank, &submission, now_ns)) return;
    request->occurrence = self->submitted[tensor]++;
    place = tensor * world->options.occurrences + request->occurrence;
    self->magnitudes[place] = absmax;
    self->in_place[place] = (uint8_t)is_in_place(rank);
    self->priorities[place] = self->priority;
}

void world_join(world_t *world, int rank, int group, int until, uint64_t now_ns)
{
    world_rank_t *self = &world->ranks[rank];
    dp_signature_t signature = {.collective = DP_COLLECTIVE_JOIN, .root = -1, .peer = -1};
    dp_submission_t submission = {
        .group = self->uids[group], .signature = &signature, .request = &self->joins[group]};

    if (!hand_over(world, rank, &submission, now_ns)) return;
    for (int t = 0; t < world->options.tensors; t++) {
        world_tensor_t kind = world_kind(world, t);

        if (kind.group != group || !world_takes_part(world, t, rank)) continue;
        if (kind.collective == DP_COLLECTIVE_GROUP_CREATE ||
            kind.collective == DP_COLLECTIVE_GROUP_DESTROY)
            continue;
        while (self->submitted[t] < until) {
            self->skipped[t * world->options.occurrences + self->submitted[t]] = 1;
            self->submitted[t]++;
        }
    }
}

static int is_join(const world_t *world, const world_rank_t *self, const world_request_t *request)
{
    return request >= self->joins && request < self->joins + group_count(world);
}

/* A request comes back, exactly once; the outcome of its occurrence. */
static world_outcome_t *outcome_of_request(world_t *world, int rank, void *pointer)
{
    world_request_t *request = pointer;
    world_rank_t *self = &world->ranks[rank];

    if (!is_join(world, self, request) &&
        (request < self->requests || request >= self->requests + world->options.tensors))
        world_violation(world, "rank %d is handed a request that is not its own", rank);
    if (!request->is_pending)
        world_violation(world, "rank %d, tensor %d: handed back twice", rank, request->tensor);
    request->is_pending = 0;
    self->pending--;
    self->pending_in[request->group]--;
    if (is_join(world, self, request)) {
        return &world->joined[request->group * (world->options.occurrences + 1) +
                              request->occurrence++];
    }
    return &world->outcomes[request->tensor * world->options.occurrences + request->occurrence];
}

/* It ended as on every other rank. */
static void finish(world_t *world, int rank, world_outcome_t *outcome, dp_status_t status)
{
    int place = (int)(outcome - world->outcomes);

    if (outcome->is_known && outcome->status != status)
        world_violation(world, "tensor %d, occurrence %d: %s on rank %d, %s elsewhere",
                        place / world->options.occurrences, place % world->options.occurrences,
                        dp_status_string(status), rank, dp_status_string(outcome->status));
    outcome->is_known = 1;
    outcome->status = status;
}

static world_outcome_t *hand_back(world_t *world, int rank, void *pointer, dp_status_t status)
{
    world_outcome_t *outcome = outcome_of_request(world, rank, pointer);

    if (!is_join(world, &world->ranks[rank], pointer)) finish(world, rank, outcome, status);
    return outcome;
}

/* All that take part have submitted this occurrence, or joined instead: so many. */
static uint32_t count_absent(world_t *world, int rank, int tensor, int occurrence)
{
    uint32_t absent = 0;

    for (int r = 0; r < world->options.size; r++) {
        if (!world_takes_part(world, tensor, r)) continue;
        if (world->ranks[r].submitted[tensor] <= occurrence)
            world_violation(world, "rank %d launches tensor %d, rank %d has not submitted it", rank,
                            tensor, r);
        absent += world->ranks[r].skipped[tensor * world->options.occurrences + occurrence];
    }
    return absent;
}

/* The merged values must be those of all submissions. */
static void check_merged(world_t *world, int rank, int tensor, int occurrence,
                         const dp_launch_entry_t *entry)
{
    int in_place = entry->absent == 0, place = tensor * world->options.occurrences + occurrence;
    float magnitude = 0;

    if (world_kind(world, tensor).collective == DP_COLLECTIVE_GROUP_CREATE) return; /* no data */
    for (int r = 0; r < world->options.size; r++) {
        const world_rank_t *self = &world->ranks[r];

        if (!world_takes_part(world, tensor, r) || self->skipped[place]) continue;
        in_place = in_place && self->in_place[place];
        if (self->magnitudes[place] < 0) magnitude = -1;
        if (magnitude >= 0) magnitude = dp_max(magnitude, self->magnitudes[place]);
    }
    if (entry->in_place != in_place)
        world_violation(world, "rank %d: tensor %d %s place", rank, tensor,
                        in_place ? "could be reduced in" : "is reduced in");
    if (entry->last_absmax < magnitude || entry->last_absmax > magnitude)
        world_violation(world, "rank %d: tensor %d has magnitude %g, told %g", rank, tensor,
                        (double)magnitude, (double)entry->last_absmax);
}

/* No other group of this rank has the same uid or index, and there are no more than groups. */
static void check_group_index(world_t *world, int rank, int group, uint32_t number,
                              uint32_t group_index)
{
    const world_rank_t *self = &world->ranks[rank];

    if (group_index >= (uint32_t)world->options.group_count)
        world_violation(world, "rank %d: group %d with index %u", rank, group, group_index);
    for (int g = 1; g < world->options.group_count; g++) {
        if (g != group && self->alive[g] && self->group_indices[g] == group_index)
            world_violation(world, "rank %d: groups %d and %d with index %u", rank, g, group,
                            group_index);
        if (g != group && self->alive[g] && self->uids[g] == number)
            world_violation(world, "rank %d: groups %d and %d are number %u", rank, g, group,
                            number);
    }
}

/* A group was made or has ended, as this rank is told. */
static void note_group(world_t *world, int rank, int tensor, const dp_output_t *out)
{
    world_rank_t *self = &world->ranks[rank];
    world_tensor_t kind = world_kind(world, tensor);

    if (kind.collective == DP_COLLECTIVE_GROUP_CREATE) {
        if (out->group_index < 1 || out->group_index > DP_GROUPS_MAX ||
            out->group <= self->uids[kind.group])
            world_violation(world, "rank %d: group %d is number %u with index %u", rank, kind.group,
                            out->group, out->group_index);
        check_group_index(world, rank, kind.group, out->group, out->group_index);
        self->uids[kind.group] = out->group;
        self->group_indices[kind.group] = out->group_index;
        self->alive[kind.group] = 1;
    }
    if (kind.collective == DP_COLLECTIVE_GROUP_DESTROY) self->alive[kind.group] = 0;
    if (out->group != self->uids[kind.group])
        world_violation(world, "rank %d: tensor %d launched in group %u, it is %u", rank, tensor,
                        out->group, self->uids[kind.group]);
}

/* The group and tensor of an entry without a request, by number and name. */
static int find_tensor(const world_t *world, int rank, uint32_t group, const char *name)
{
    char own[32];

    for (int t = 0; t < world->options.tensors; t++) {
        world_tensor_t kind = world_kind(world, t);

        if (!world->ranks[rank].alive[kind.group]) continue;
        if (world->ranks[rank].uids[kind.group] != group) continue;
        if (kind.collective == DP_COLLECTIVE_GROUP_CREATE) continue;
        if (strcmp(world_name(kind.name, own), name) == 0) return t;
    }
    return -1;
}

static void note_identity(world_t *world, int rank, const dp_output_t *out,
                          const dp_launch_entry_t *entry, uint64_t place)
{
    world_rank_t *self = &world->ranks[rank];
    int tensor = find_tensor(world, rank, out->group, entry->name);

    if (tensor < 0 || entry->absent == 0 || entry->in_place || entry->signature == NULL)
        world_violation(world, "rank %d: an identity for tensor %s, %u absent", rank, entry->name,
                        entry->absent);
    if (self->identity_count == self->identity_room) {
        self->identity_room = self->identity_room * 2 + 16;
        self->identities =
            realloc(self->identities, self->identity_room * sizeof(*self->identities));
        if (self->identities == NULL) exit(2);
    }
    self->identities[self->identity_count++] = (world_identity_t){tensor, place};
}

/* The same launch on every rank that does it. */
static void check_place(world_t *world, int rank, world_outcome_t *outcome, const dp_output_t *out,
                        size_t index)
{
    const dp_launch_entry_t *entry = &out->entries[index];
    /* Its place in the order: the launch, and the place in it. */
    uint64_t place = out->sequence << 20 | index;

    if (!outcome->is_placed) {
        outcome->is_placed = 1;
        outcome->sequence = place;
        outcome->absmax = entry->last_absmax;
        outcome->in_place = entry->in_place;
        outcome->group = out->group;
        outcome->group_index = out->group_index;
    }
    if (outcome->sequence != place || outcome->in_place != entry->in_place ||
        outcome->group != out->group || outcome->group_index != out->group_index ||
        memcmp(&outcome->absmax, &entry->last_absmax, sizeof(float)) != 0)
        world_violation(world, "rank %d: tensor %d launched otherwise than elsewhere", rank,
                        (int)(outcome - world->outcomes) / world->options.occurrences);
}

/* ---- Outputs -------------------------------------------------------------------------------- */

static void take_entry(world_t *world, int rank, const dp_output_t *out, size_t index)
{
    const dp_launch_entry_t *entry = &out->entries[index];
    world_request_t *request = entry->request;
    world_outcome_t *outcome = hand_back(world, rank, request, DP_OK);

    if (request->tensor < 0) world_violation(world, "rank %d: a join is launched", rank);
    note_group(world, rank, request->tensor, out);
    if (out->entry_count > 1 && world_kind(world, request->tensor).collective >= DP_COLLECTIVE_SEND)
        world_violation(world, "rank %d: tensor %d is not alone", rank, request->tensor);
    if (entry->absent != count_absent(world, rank, request->tensor, request->occurrence))
        world_violation(world, "rank %d: tensor %d, %u absent", rank, request->tensor,
                        entry->absent);
    check_merged(world, rank, request->tensor, request->occurrence, entry);
    if (entry->signature == NULL ||
        entry->signature->collective != world_kind(world, request->tensor).collective)
        world_violation(world, "rank %d: tensor %d has another signature", rank, request->tensor);
    check_place(world, rank, outcome, out, index);
}

static void note_order(world_rank_t *self, uint64_t sequence)
{
    if (self->order_count == self->order_room) {
        self->order_room = self->order_room * 2 + 16;
        self->order = realloc(self->order, self->order_room * sizeof(*self->order));
        if (self->order == NULL) exit(2);
    }
    self->order[self->order_count++] = sequence;
}

/* The largest that a rank gave to the occurrence that a rank is about to launch. */
static int32_t priority_of(const world_t *world, const world_request_t *request)
{
    const int place = request->tensor * world->options.occurrences + request->occurrence;
    int32_t largest = INT32_MIN;

    for (int r = 0; r < world->options.size; r++) {
        if (world_takes_part(world, request->tensor, r))
            largest = dp_max(largest, world->ranks[r].priorities[place]);
    }
    return largest;
}

/* Of what the root launches at one moment a higher priority comes first, and all in one launch
 * have the same. *last: of the launch before this one in the same moment. */
static void check_priority(world_t *world, int rank, const dp_output_t *out, int32_t *last)
{
    int32_t first;

    if (!world->options.checks_priorities || world->is_parting || rank != 0) return;
    first = priority_of(world, out->entries[0].request);
    for (size_t i = 1; i < out->entry_count; i++) {
        if (priority_of(world, out->entries[i].request) != first)
            world_violation(world, "launch %llu has priorities %d and %d",
                            (unsigned long long)out->sequence, (int)first,
                            (int)priority_of(world, out->entries[i].request));
    }
    if (first > *last)
        world_violation(world, "launch %llu has priority %d, the one before it %d",
                        (unsigned long long)out->sequence, (int)first, (int)*last);
    world->overtakings += *last != INT32_MAX && first < *last;
    *last = first;
}

static void take_launch(world_t *world, int rank, const dp_output_t *out)
{
    world_rank_t *self = &world->ranks[rank];
    int has_gaps = world->options.kinds != NULL;

    note_order(self, out->sequence);
    if (out->sequence <= self->launches || (!has_gaps && out->sequence != self->launches + 1))
        world_violation(world, "rank %d: launch %llu after %llu", rank,
                        (unsigned long long)out->sequence, (unsigned long long)self->launches);
    self->launches = out->sequence;
    if (out->entry_count == 0) world_violation(world, "rank %d: an empty launch", rank);
    for (size_t i = 0; i < out->entry_count; i++) {
        if (out->entries[i].request != NULL) {
            take_entry(world, rank, out, i);
        } else {
            note_identity(world, rank, out, &out->entries[i], out->sequence << 20 | i);
        }
    }
    if (world->options.launched != NULL)
        world->options.launched(world->options.user, rank, out->sequence);
}

static void take_joined(world_t *world, int rank, const dp_output_t *out)
{
    world_request_t *request = out->request;
    world_outcome_t *outcome = hand_back(world, rank, request, DP_OK);
    int group = request->group;
    int count = group == 0 ? world->options.size : world->options.groups[group].count;

    if (request->tensor >= 0 || out->group != world->ranks[rank].uids[group])
        world_violation(world, "rank %d: another group was joined", rank);
    if (out->last_rank < 0 || out->last_rank >= count)
        world_violation(world, "rank %d: group %d was joined last by rank %d", rank, group,
                        out->last_rank);
    if (!outcome->is_known) outcome->sequence = (uint64_t)out->last_rank;
    if (outcome->sequence != (uint64_t)out->last_rank || outcome->status != DP_OK)
        world_violation(world, "rank %d: group %d joined otherwise than elsewhere", rank, group);
    outcome->is_known = 1;
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
    int32_t last_priority = INT32_MAX;

    if (self->is_dead) return;
    while (dp_negotiator_output(self->negotiator, &out)) {
        if (self->is_fatal || self->is_finished)
            world_violation(world, "rank %d: output %d after its last", rank, (int)out.kind);
        switch (out.kind) {
        case DP_OUTPUT_JOINED:
            take_joined(world, rank, &out);
            break;
        case DP_OUTPUT_SEND:
            send_message(world, rank, &out);
            break;
        case DP_OUTPUT_LAUNCH:
            check_priority(world, rank, &out, &last_priority);
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
