/*
 * names.h - what a group knows of the names that the program has used: a state for each.
 *
 * A state is made when a name is used for the first time, so that a second use costs a look-up and
 * no memory. Programs may make new names for ever, so beyond a limit the one that was used longest
 * ago goes. Guarded by the context's lock.
 */
#ifndef DP_COORDINATOR_NAMES_H
#define DP_COORDINATOR_NAMES_H

#include "coordinator/negotiator/signature.h"
#include "runtime/trace/trace.h"

typedef struct dp_name_state {
    struct dp_name_state *next;          /* of the same hash list */
    struct dp_name_state *older, *newer; /* by their last use */
    size_t users;                        /* requests that point here, also those that are over */
    uint64_t hash;
    dp_handle_t *pending;       /* submitted and not yet launched */
    size_t live_count;          /* operations not over */
    dp_signature_t signature;   /* of the pending submission */
    dp_signature_part_t part;   /* its only part, unless there are several */
    dp_signature_part_t *parts; /* [part_room]; freed with the state */
    size_t part_room;
    float last_absmax; /* largest magnitude in the last reduction's raw sum, for fp16's scale;
                          negative: unknown */
    uint32_t trace_name;
    const char *name; /* in label, behind the group's */
    char label[];     /* for the timeline and the data plane: "act" in the world, else "tp/act" */
} dp_name_state_t;

/* Zeroed: empty. */
typedef struct dp_names {
    dp_name_state_t **heads; /* [head_count] first states of the hash lists */
    size_t head_count;       /* a power of two, or 0 */
    size_t count;
    dp_name_state_t *oldest, *newest;
} dp_names_t;

/* The state of a name, made if there is none. group_name: "" in the world. limit: of states; in
 * program order all ranks must forget a name at the same submission, as its last magnitude scales
 * fp16, so it is more than can be in flight. DP_ERR_NO_MEMORY. */
dp_status_t dp_names_find_or_add(dp_names_t *names, const char *group_name, const char *name,
                                 dp_trace_t *trace, size_t limit, dp_name_state_t **out);
void dp_names_fini(dp_names_t *names); /* empty afterwards */

/* A state that is in no table, so that its name collides with no tensor's. NULL: no memory. */
dp_name_state_t *dp_name_state_create(const char *group_name, const char *name, dp_trace_t *trace);
void dp_name_state_destroy(dp_name_state_t *state); /* NULL is fine */

/* Room in the state for so many parts of a signature. NULL: no memory. */
dp_signature_part_t *dp_name_state_parts(dp_name_state_t *state, size_t count);

#endif
