/*
 * names.h - the tensors a group has seen, by name.
 *
 * An entry is made when a name is used for the first time and stays, so that a second use costs a
 * look-up and no memory. The caller's lock guards everything here.
 */
#ifndef DP_COORDINATOR_NAMES_H
#define DP_COORDINATOR_NAMES_H

#include "coordinator/negotiator/signature.h"
#include "runtime/trace/trace.h"

typedef struct dp_tensor_entry {
    struct dp_tensor_entry *next; /* in its hash chain */
    uint64_t hash;
    dp_handle_t *pending;       /* submitted and not yet launched */
    size_t live_count;          /* operations not over */
    dp_signature_t signature;   /* of the pending submission */
    dp_signature_part_t part;   /* its only part, unless there are several */
    dp_signature_part_t *parts; /* [part_room], owned */
    size_t part_room;
    float last_absmax; /* raw sum of the last reduction; negative: unknown */
    uint32_t trace_name;
    const char *name; /* in label, behind the group's */
    char label[];     /* for the timeline and the data plane: "act" in the world, else "tp/act" */
} dp_tensor_entry_t;

/* Zeroed: empty. */
typedef struct dp_names {
    dp_tensor_entry_t **buckets; /* [bucket_count] */
    size_t bucket_count;         /* a power of two, or 0 */
    size_t count;
} dp_names_t;

/* Finds the entry of a name, or makes it. group_name: "" in the world. DP_ERR_NO_MEMORY. */
dp_status_t dp_names_find_or_add(dp_names_t *names, const char *group_name, const char *name,
                                 dp_trace_t *trace, dp_tensor_entry_t **out);
void dp_names_fini(dp_names_t *names); /* empty afterwards */

/* An entry in no table. NULL: no memory. */
dp_tensor_entry_t *dp_entry_create(const char *group_name, const char *name, dp_trace_t *trace);
void dp_entry_destroy(dp_tensor_entry_t *entry); /* NULL is fine */

/* The entry's room for this many parts of a signature. NULL: no memory. */
dp_signature_part_t *dp_entry_parts(dp_tensor_entry_t *entry, size_t count);

#endif
