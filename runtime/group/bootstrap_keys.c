/*
 * bootstrap_keys.c - the keys by which the ranks of a world meet in a program's store.
 */
#include "runtime/group/bootstrap_keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/config_value.h"
#include "runtime/group/node_identity.h"

#define WORLD_KEY "dp/world"
#define NOBODY "nobody" /* its value while no world meets */
#define ADDRESS_KEY "dp/%s/rendezvous"
#define NODE_KEY "dp/%s/node/%d"
#define KEY_ROOM 64
#define LONGEST_S 1e9
#define LOOK_NS 1000000000ull /* for a world's address, before the name is read again */
#define EARLY_NS 20000000ull  /* a store's own clock may end a wait so much sooner */

uint64_t dp_bootstrap_keys_init(dp_bootstrap_keys_t *keys, const dp_bootstrap_store_t *store,
                                uint64_t start_timeout_ns)
{
    *keys = (dp_bootstrap_keys_t){.store = store, .timeout_ns = start_timeout_ns};
    if (store->seconds > 0) keys->timeout_ns = (uint64_t)(dp_min(store->seconds, LONGEST_S) * 1e9);
    keys->deadline_ns = dp_now_ns() + keys->timeout_ns;
    return keys->timeout_ns;
}

static dp_status_t put(const dp_bootstrap_keys_t *keys, const char *key, const char *text,
                       dp_error_t *error)
{
    const int code = keys->store->put(keys->store->user, key, text, strlen(text));

    if (code == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM, "the store's put of '%s' returned %d", key, code);
}

/* Waits until then at most: DP_ERR_TIMEOUT, without a text. */
static dp_status_t get(const dp_bootstrap_keys_t *keys, const char *key, char *text, size_t room,
                       uint64_t until_ns, dp_error_t *error)
{
    const uint64_t now = dp_now_ns();
    const uint64_t left = until_ns > now ? until_ns - now : 1;
    size_t bytes = 0;
    const int code =
        keys->store->get(keys->store->user, key, text, room - 1, &bytes, (double)left * 1e-9);

    if (code == 0 && bytes < room) {
        text[bytes] = '\0';
        return DP_OK;
    }
    if (code == 0) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "the store's get of '%s' gave %zu bytes where %zu fit", key, bytes,
                            room - 1);
    }
    if (dp_now_ns() + EARLY_NS >= until_ns) return DP_ERR_TIMEOUT;
    return dp_error_set(error, DP_ERR_SYSTEM, "the store's get of '%s' returned %d", key, code);
}

dp_status_t dp_bootstrap_keys_name_late(const dp_bootstrap_keys_t *keys, int rank,
                                        const char *cause, dp_error_t *error)
{
    char limit[32];

    dp_format_time((int64_t)keys->timeout_ns, limit, sizeof(limit));
    return dp_error_set(error, DP_ERR_TIMEOUT, "rank %d did not come to the store within %s%s%s%s",
                        rank, keys->store->seconds > 0 ? "" : "DP_START_TIMEOUT=", limit,
                        *cause ? ": " : ": did it start?", cause);
}

dp_status_t dp_bootstrap_keys_lead(dp_bootstrap_keys_t *keys, int *is_one_node, dp_error_t *error)
{
    char key[KEY_ROOM], node[DP_NODE_IDENTITY_TEXT];
    dp_node_identity_t own;
    uint64_t name;
    dp_status_t status;

    dp_random(&name, sizeof(name));
    snprintf(keys->world, sizeof(keys->world), "%016" PRIx64, name);
    status = put(keys, WORLD_KEY, keys->world, error);
    dp_node_identity_read(&own);
    *is_one_node = 1;
    for (int rank = 1; status == DP_OK && rank < keys->store->size; rank++) {
        snprintf(key, sizeof(key), NODE_KEY, keys->world, rank);
        status = get(keys, key, node, sizeof(node), keys->deadline_ns, error);
        if (status == DP_ERR_TIMEOUT) return dp_bootstrap_keys_name_late(keys, rank, "", error);
        if (status == DP_OK && strcmp(node, own.node) != 0) *is_one_node = 0;
    }
    return status;
}

dp_status_t dp_bootstrap_keys_put_address(const dp_bootstrap_keys_t *keys, const char *text,
                                          dp_error_t *error)
{
    char key[KEY_ROOM];

    snprintf(key, sizeof(key), ADDRESS_KEY, keys->world);
    return put(keys, key, text, error);
}

static dp_status_t answer(dp_bootstrap_keys_t *keys, const char *world, dp_error_t *error)
{
    char key[KEY_ROOM];
    dp_node_identity_t own;

    if (strcmp(world, keys->world) == 0) return DP_OK;
    snprintf(keys->world, sizeof(keys->world), "%s", world);
    snprintf(key, sizeof(key), NODE_KEY, world, keys->store->rank);
    dp_node_identity_read(&own);
    return put(keys, key, own.node, error);
}

dp_status_t dp_bootstrap_keys_find_address(dp_bootstrap_keys_t *keys, char *text, size_t room,
                                           dp_error_t *error)
{
    char world[DP_BOOTSTRAP_NAME_ROOM], key[KEY_ROOM];
    dp_status_t status = get(keys, WORLD_KEY, world, sizeof(world), keys->deadline_ns, error);

    if (status == DP_OK && strcmp(world, NOBODY) == 0) return DP_ERR_TIMEOUT;
    if (status == DP_OK) status = answer(keys, world, error);
    if (status != DP_OK) return status;
    snprintf(key, sizeof(key), ADDRESS_KEY, keys->world);
    return get(keys, key, text, room, dp_min(dp_now_ns() + LOOK_NS, keys->deadline_ns), error);
}

/* A store that has gone by now has no next world, so failures do not matter. */
void dp_bootstrap_keys_leave(const dp_bootstrap_keys_t *keys)
{
    dp_error_t ignored = {DP_OK, ""};

    if (keys->store->rank != 0) return;
    put(keys, WORLD_KEY, NOBODY, &ignored);
    dp_bootstrap_keys_put_address(keys, "", &ignored); /* it has the world's secret */
}
