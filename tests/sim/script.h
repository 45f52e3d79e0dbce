/*
 * script.h - what the ranks of a simulated world do: groups that come and go, tensors in them.
 *
 * All ranks follow one plan of phases, as the processes of one program do: at its beginning groups
 * are made, then come some steps in which each rank submits the tensors it takes part in, in an
 * order of its own, at its end groups are ended. In some phases ranks of one group run out of data
 * and join. Nothing here knows of negotiators: a script is lists of acts.
 */
#ifndef DP_TESTS_SIM_SCRIPT_H
#define DP_TESTS_SIM_SCRIPT_H

#include "world.h"

typedef enum act_kind {
    ACT_SUBMIT,   /* tensor `index`; waits until it is not pending */
    ACT_WAIT,     /* for tensor `index` */
    ACT_DRAIN,    /* wait for this rank's tensors of group `index`, -1: for all */
    ACT_JOIN,     /* group `index`, leaving occurrences up to `until` to the others */
    ACT_WAIT_JOIN /* of group `index` */
} act_kind_t;

typedef struct act {
    act_kind_t kind;
    int index, until;
    uint64_t count; /* elements */
} act_t;

typedef struct script_options {
    int size;
    int has_groups, may_join;
    int world_tensors; /* at most */
    int steps;         /* in all */
    int waits_at_step_end;
    int reshape_step; /* all ranks change every shape; 0: never */
    /* one rank's shapes differ in one step, in every third tensor; step < 0: never */
    int mismatch_step, mismatch_tensor, mismatch_rank;
} script_options_t;

typedef struct script {
    script_options_t options;
    world_group_t *groups; /* [group_count] */
    int group_count;
    world_tensor_t *kinds; /* [tensor_count] */
    int tensor_count;
    int *creates, *destroys; /* [group_count] tensors */
    int *joins;              /* [group_count] times it is joined by all */
    int occurrences;         /* of a tensor, at most */
    act_t **acts;            /* [size][act_count] */
    size_t *act_count, *act_room;
    int *failures; /* [size] mismatches to expect */
    int *used;     /* [tensor_count] occurrences planned so far */
} script_t;

void script_init(script_t *script, const script_options_t *options, uint64_t *random);
void script_fini(script_t *script);

#endif
