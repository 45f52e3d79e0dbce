/*
 * registry.h - which ranges of the program's own memory are pages of this rank's arena.
 *
 * A sorted list. Searched by every submission without a lock, written by dp_arena_adopt() and
 * dp_arena_disown(), one at a time. It must not know how a range became shared.
 */
#ifndef DP_SHM_REGISTRY_H
#define DP_SHM_REGISTRY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/error.h"

typedef struct dp_registration {
    uintptr_t begin;
    size_t bytes;
    uint64_t offset; /* of the range in the arena */
} dp_registration_t;

typedef struct dp_registry_list dp_registry_list_t;

/* Zeroed memory is an empty registry. */
typedef struct dp_registry {
    _Atomic uint32_t version; /* odd while the list is being changed */
    _Atomic size_t count;
    _Atomic(dp_registry_list_t *) list;
} dp_registry_t;

void dp_registry_fini(dp_registry_t *registry);

/* The offset of [at, at + bytes) when it lies in one registration, else UINT64_MAX. Any thread, no
 * lock, beside at most one of the writers below. */
uint64_t dp_registry_offset(const dp_registry_t *registry, uintptr_t at, size_t bytes);

/* ---- One writer at a time ------------------------------------------------------------------- */

/* Makes room for one more, so that the next add cannot fail. */
dp_status_t dp_registry_reserve(dp_registry_t *registry);
/* Ranges do not overlap. */
void dp_registry_add(dp_registry_t *registry, dp_registration_t registration);
/* The registration that begins at `begin`: 1 and *out, else 0. */
int dp_registry_find(const dp_registry_t *registry, uintptr_t begin, dp_registration_t *out);
void dp_registry_remove(dp_registry_t *registry, uintptr_t begin);
/* A registration that shares a byte with [begin, begin + bytes): 1 and *out, else 0. */
int dp_registry_overlap(const dp_registry_t *registry, uintptr_t begin, size_t bytes,
                        dp_registration_t *out);
/* The first one: 1 and *out; 0: there are none. */
int dp_registry_first(const dp_registry_t *registry, dp_registration_t *out);

#endif
