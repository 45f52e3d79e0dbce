/*
 * registry.c - a sorted list of ranges, searched without a lock (a sequence lock on atomics).
 *
 * A list that became too small is kept until the end, because a reader may still be in it; as each
 * is twice as large as the one before, all of them together waste less than the last one takes.
 */
#include "runtime/shm/registry.h"

#include <sched.h>
#include <stdlib.h>

typedef struct entry {
    _Atomic uintptr_t begin;
    _Atomic size_t bytes;
    _Atomic uint64_t offset;
} entry_t;

struct dp_registry_list {
    dp_registry_list_t *smaller; /* which this one replaced */
    size_t room;
    entry_t entries[]; /* [room] */
};

void dp_registry_fini(dp_registry_t *registry)
{
    dp_registry_list_t *list = atomic_load_explicit(&registry->list, memory_order_relaxed);

    while (list != NULL) {
        dp_registry_list_t *smaller = list->smaller;

        free(list);
        list = smaller;
    }
}

/* The acquire loads keep the search between the two readings of the version: none of them may be
 * delayed past the second one. They pair with the release stores of store(). */
static dp_registration_t load(const entry_t *entry)
{
    return (dp_registration_t){
        .begin = atomic_load_explicit(&entry->begin, memory_order_acquire),
        .bytes = atomic_load_explicit(&entry->bytes, memory_order_acquire),
        .offset = atomic_load_explicit(&entry->offset, memory_order_acquire),
    };
}

/* Release: whoever sees one of these sees that the version is odd. */
static void store(entry_t *entry, dp_registration_t registration)
{
    atomic_store_explicit(&entry->begin, registration.begin, memory_order_release);
    atomic_store_explicit(&entry->bytes, registration.bytes, memory_order_release);
    atomic_store_explicit(&entry->offset, registration.offset, memory_order_release);
}

/* How many of the first `count` begin at or before `at`. */
static size_t rank_of(const dp_registry_list_t *list, size_t count, uintptr_t at)
{
    size_t low = 0;
    size_t high = count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (atomic_load_explicit(&list->entries[middle].begin, memory_order_acquire) <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint64_t dp_registry_offset(const dp_registry_t *registry, uintptr_t at, size_t bytes)
{
    /* A caller that may ask about a registration has seen it made. */
    if (atomic_load_explicit(&registry->count, memory_order_acquire) == 0) return UINT64_MAX;
    for (;;) {
        const uint32_t version = atomic_load_explicit(&registry->version, memory_order_acquire);
        const dp_registry_list_t *list =
            atomic_load_explicit(&registry->list, memory_order_acquire);
        const size_t count = atomic_load_explicit(&registry->count, memory_order_acquire);
        uint64_t offset = UINT64_MAX;

        /* Not of one moment when the count does not fit; the version tells, too. */
        if (version % 2 == 0 && list != NULL && count <= list->room) {
            const size_t rank = rank_of(list, count, at);

            if (rank != 0) {
                const dp_registration_t found = load(&list->entries[rank - 1]);
                const size_t into = at - found.begin;

                if (into <= found.bytes && found.bytes - into >= bytes) {
                    offset = found.offset + into;
                }
            }
            if (atomic_load_explicit(&registry->version, memory_order_relaxed) == version) {
                return offset;
            }
        }
        sched_yield(); /* a writer moves some entries: soon over */
    }
}

/* ---- Writing ------------------------------------------------------------------------------ */

static dp_registry_list_t *list_of(const dp_registry_t *registry)
{
    return atomic_load_explicit(&registry->list, memory_order_relaxed);
}

static size_t count_of(const dp_registry_t *registry)
{
    return atomic_load_explicit(&registry->count, memory_order_relaxed);
}

static void begin_change(dp_registry_t *registry)
{
    const uint32_t version = atomic_load_explicit(&registry->version, memory_order_relaxed);

    atomic_store_explicit(&registry->version, version + 1, memory_order_relaxed);
}

static void end_change(dp_registry_t *registry)
{
    const uint32_t version = atomic_load_explicit(&registry->version, memory_order_relaxed);

    atomic_store_explicit(&registry->version, version + 1, memory_order_release);
}

dp_status_t dp_registry_reserve(dp_registry_t *registry)
{
    dp_registry_list_t *old = list_of(registry);
    const size_t count = count_of(registry);
    const size_t room = old == NULL ? 16 : 2 * old->room;
    dp_registry_list_t *list;

    if (old != NULL && count < old->room) return DP_OK;
    list = calloc(1, sizeof(*list) + room * sizeof(entry_t));
    if (list == NULL) return DP_ERR_NO_MEMORY;
    list->smaller = old;
    list->room = room;
    for (size_t i = 0; i < count; i++)
        store(&list->entries[i], load(&old->entries[i]));
    begin_change(registry);
    atomic_store_explicit(&registry->list, list, memory_order_release);
    end_change(registry);
    return DP_OK;
}

void dp_registry_add(dp_registry_t *registry, dp_registration_t registration)
{
    dp_registry_list_t *list = list_of(registry);
    const size_t count = count_of(registry);
    const size_t place = rank_of(list, count, registration.begin);

    begin_change(registry);
    for (size_t i = count; i > place; i--)
        store(&list->entries[i], load(&list->entries[i - 1]));
    store(&list->entries[place], registration);
    atomic_store_explicit(&registry->count, count + 1, memory_order_release);
    end_change(registry);
}

int dp_registry_find(const dp_registry_t *registry, uintptr_t begin, dp_registration_t *out)
{
    const size_t rank = rank_of(list_of(registry), count_of(registry), begin);

    if (rank == 0) return 0;
    *out = load(&list_of(registry)->entries[rank - 1]);
    return out->begin == begin;
}

void dp_registry_remove(dp_registry_t *registry, uintptr_t begin)
{
    dp_registry_list_t *list = list_of(registry);
    const size_t count = count_of(registry);
    const size_t rank = rank_of(list, count, begin);

    begin_change(registry);
    for (size_t i = rank; i < count; i++)
        store(&list->entries[i - 1], load(&list->entries[i]));
    atomic_store_explicit(&registry->count, count - 1, memory_order_release);
    end_change(registry);
}

int dp_registry_overlap(const dp_registry_t *registry, uintptr_t begin, size_t bytes,
                        dp_registration_t *out)
{
    /* The last one that begins before the end: those before it end before it begins. */
    const size_t rank = rank_of(list_of(registry), count_of(registry), begin + (bytes - 1));

    if (rank == 0) return 0;
    *out = load(&list_of(registry)->entries[rank - 1]);
    return out->begin + out->bytes > begin;
}

int dp_registry_first(const dp_registry_t *registry, dp_registration_t *out)
{
    if (count_of(registry) == 0) return 0;
    *out = load(&list_of(registry)->entries[0]);
    return 1;
}
