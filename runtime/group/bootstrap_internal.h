/*
 * bootstrap_internal.h - what the ways to bootstrap share; callers see bootstrap.h alone.
 */
#ifndef DP_GROUP_BOOTSTRAP_INTERNAL_H
#define DP_GROUP_BOOTSTRAP_INTERNAL_H

#include "runtime/group/bootstrap.h"
#include "runtime/group/starter.h"

/* A rank of dprun's job; all five of the launcher's variables are there and fit together. */
dp_status_t dp_bootstrap_create_dprun(const dp_config_t *config, dp_bootstrap_t **out,
                                      dp_error_t *error);

/* Tells dprun, by the ticket that it gave this rank, why a world ended that met elsewhere. Best
 * effort, within a second; uses up the ticket. Threads: any, once. */
void dp_bootstrap_report_to_dprun(int ticket_fd, int rank, const dp_failure_t *failure);

/* A rank of a job of two or more that others started. Blocks until all ranks have come, or
 * DP_START_TIMEOUT.
 * store: of a starter of the kind STORE, else NULL. */
dp_status_t dp_bootstrap_create_elsewhere(const dp_config_t *config, const dp_starter_t *starter,
                                          const dp_bootstrap_store_t *store, dp_bootstrap_t **out,
                                          dp_error_t *error);

/* job becomes "prefix-0123456789abcdef", tag a random number: no two worlds share them. */
void dp_bootstrap_name_world(dp_bootstrap_t *bootstrap, const char *prefix, uint64_t random);

/* A value with a NUL behind its last byte, or NULL: no memory. Returned, free() it. */
void *dp_bootstrap_copy(const void *value, size_t bytes);

/* Frees values[0 .. count) and sets them to NULL. */
void dp_bootstrap_free_values(void **values, int count);

#endif
