/*
 * registry.c - a sorted list of ranges, searched without a lock: a sequence lock on atomics.
 *
 *     writer (under adopt_lock)                 reader (any thread)
 *     version + 1: odd, relaxed                 v = version, acquire
 *     entries, count, list: release stores      entries, count, list: acquire loads
 *     version + 1: even, release                version again, relaxed: != v or odd: search again
 *
 * The release stores keep the entries behind the odd version: a reader that loads a changed entry
 * (acquire) also sees the odd version when it looks again. The acquire loads keep the second look
 * behind the search. The final release pairs with the reader's first load.
 *
 * A list that became too small is kept until the end, because a reader may still be in it; as each
 * is twice as large as the one before, all of them together waste less than the last one takes.
 */
#include "runtime/shm/registry.h"

#include <sched.h>
#include <stdlib.h>

typedef struct registry_entry {
    _Atomic uintptr_t begin;
    _Atomic size_t bytes;
    _Atomic uint64_t offset;
} registry_entry_t;

struct dp_registry_list {
    dp_registry_list_t *smaller; /* which this one replaced */
    size_t room;
    registry_entry_t entries[]; /* [room] */
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

/* Acquire: none of these loads may move behind the second look at the version. */
static dp_registration_t load_entry(const registry_entry_t *entry)
{
    return (dp_registration_t){
        .begin = atomic_load_explicit(&entry->begin, memory_order_acquire),
        .bytes = atomic_load_explicit(&entry->bytes, memory_order_acquire),
        .offset = atomic_load_explicit(&entry->offset, memory_order_acquire),
    };
}

/* Release: a reader that sees one of these values also sees the odd version. */
static void store_entry(registry_entry_t *entry, dp_registration_t registration)
{
    atomic_store_explicit(&entry->begin, registration.begin, memory_order_release);
    atomic_store_explicit(&entry->bytes, registration.bytes, memory_order_release);
    atomic_store_explicit(&entry->offset, registration.offset, memory_order_release);
}

/* How many of the first `count` begin at or before `at`. */
static size_t count_up_to(const dp_registry_list_t *list, size_t count, uintptr_t at)
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
    /* The usual case, without a look at the version. It misses no registration that its caller may
     * ask about: that one happened before this call. */
    if (atomic_load_explicit(&registry->count, memory_order_acquire) == 0) return UINT64_MAX;
    for (;;) {
        const uint32_t version = atomic_load_explicit(&registry->version, memory_order_acquire);
        const dp_registry_list_t *list =
            atomic_load_explicit(&registry->list, memory_order_acquire);
        const size_t count = atomic_load_explicit(&registry->count, memory_order_acquire);
        uint64_t offset = UINT64_MAX;

        /* list and count may be of different moments, so the index is checked before it is used. */
        if (version % 2 == 0 && list != NULL && count <= list->room) {
            const size_t rank = count_up_to(list, count, at);

            if (rank != 0) {
                const dp_registration_t found = load_entry(&list->entries[rank - 1]);
                const size_t into = at - found.begin;

                if (into <= found.bytes && found.bytes - into >= bytes) {
                    offset = found.offset + into;
                }
            }
            if (atomic_load_explicit(&registry->version, memory_order_relaxed) == version) {
                return offset;
            }
        }
        sched_yield(); /* a writer moves entries: soon over */
    }
}

/* ---- Writing -------------------------------------------------------------------------------- */

static dp_registry_list_t *list_of(const dp_registry_t *registry)
{
    return atomic_load_explicit(&registry->list, memory_order_relaxed);
}

static size_t entry_count(const dp_registry_t *registry)
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
    const size_t count = entry_count(registry);
    const size_t room = old == NULL ? 16 : 2 * old->room;
    dp_registry_list_t *list;

    if (old != NULL && count < old->room) return DP_OK;
    list = calloc(1, sizeof(*list) + room * sizeof(registry_entry_t));
    if (list == NULL) return DP_ERR_NO_MEMORY;
    list->smaller = old;
    list->room = room;
    for (size_t i = 0; i < count; i++)
        store_entry(&list->entries[i], load_entry(&old->entries[i]));
    begin_change(registry);
    atomic_store_explicit(&registry->list, list, memory_order_release);
    end_change(registry);
    return DP_OK;
}

void dp_registry_add(dp_registry_t *registry, dp_registration_t registration)
{
    dp_registry_list_t *list = list_of(registry);
    const size_t count = entry_count(registry);
    const size_t place = count_up_to(list, count, registration.begin);

    begin_change(registry);
    for (size_t i = count; i > place; i--)
        store_entry(&list->entries[i], load_entry(&list->entries[i - 1]));
    store_entry(&list->entries[place], registration);
    atomic_store_explicit(&registry->count, count + 1, memory_order_release);
    end_change(registry);
}

int dp_registry_find(const dp_registry_t *registry, uintptr_t begin, dp_registration_t *out)
{
    const size_t rank = count_up_to(list_of(registry), entry_count(registry), begin);

    if (rank == 0) return 0;
    *out = load_entry(&list_of(registry)->entries[rank - 1]);
    return out->begin == begin;
}

void dp_registry_remove(dp_registry_t *registry, uintptr_t begin)
{
    dp_registry_list_t *list = list_of(registry);
    const size_t count = entry_count(registry);
    const size_t rank = count_up_to(list, count, begin);

    begin_change(registry);
    for (size_t i = rank; i < count; i++)
        store_entry(&list->entries[i - 1], load_entry(&list->entries[i]));
    atomic_store_explicit(&registry->count, count - 1, memory_order_release);
    end_change(registry);
}

int dp_registry_overlap(const dp_registry_t *registry, uintptr_t begin, size_t bytes,
                        dp_registration_t *out)
{
    /* Ranges do not overlap, so only the last one that begins before the end can reach into it. */
    const size_t rank = count_up_to(list_of(registry), entry_count(registry), begin + (bytes - 1));

    if (rank == 0) return 0;
    *out = load_entry(&list_of(registry)->entries[rank - 1]);
    return out->begin + out->bytes > begin;
}

int dp_registry_first(const dp_registry_t *registry, dp_registration_t *out)
{
    if (entry_count(registry) == 0) return 0;
    *out = load_entry(&list_of(registry)->entries[0]);
    return 1;
}
