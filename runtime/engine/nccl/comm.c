/*
 * comm.c - communicators: how they are called, made, ended and broken.
 *
 * The launch thread creates a group: its lowest rank makes an id and sends it to the others over
 * the world's communicator. The keeper (watch.c) makes the communicator from it. A group that opens
 * its gather lane gets a second communicator in the same way: operations of one communicator run
 * one after the other, whatever their streams. An ordered world has a second one from the start, as
 * ids of groups travel over the first. All ranks create and end communicators in one order,
 * so no two keepers wait for each other. It must not know what operations do.
 */
#include "runtime/engine/nccl/nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/driver.h"
#include "runtime/base/thread.h"

/* ---- Calls ---------------------------------------------------------------------------------- */

/* dp_nccl_is_aborted() is asked twice. The first time without the lock, for an abort that hangs
 * holds call_lock for as long as it hangs. The second time under it: dp_nccl_keep_break() may have
 * ended the communicator while this thread waited for the lock. */
int dp_nccl_enter(dp_nccl_group_t *group)
{
    dp_nccl_engine_t *engine = group->engine;

    if (dp_nccl_is_aborted(engine)) return 0; /* without a lock that a hanging abort may hold */
    pthread_mutex_lock(&engine->call_lock);
    if (group->comm != NULL && !dp_nccl_is_aborted(engine)) return 1;
    pthread_mutex_unlock(&engine->call_lock);
    return 0;
}

dp_status_t dp_nccl_refuse(dp_nccl_group_t *group, dp_error_t *error)
{
    return dp_error_set(error, DP_ERR_ABORTED, "the communicator%s has ended", group->title);
}

/* Communicators are non-blocking, so a call may return ncclInProgress and go on in a thread of
 * NCCL's; then NCCL is asked until it is done. call_lock is given back between two questions: the
 * watcher looks for errors then, and the keeper can abort. Every question to group->comm, for its
 * last error too, is asked under call_lock, because an abort frees the communicator. */
dp_status_t dp_nccl_complete_call(dp_nccl_group_t *group, ncclResult_t result, const char *what,
                                  dp_error_t *error)
{
    dp_nccl_engine_t *engine = group->engine;
    const uint64_t start_ns = dp_now_ns();
    char why[160] = "";
    unsigned turns = 0;

    for (;;) {
        if (result == ncclInProgress) {
            if (ncclCommGetAsyncError(group->comm, &result) != ncclSuccess) {
                result = ncclInternalError;
            }
        }
        if (result != ncclSuccess && result != ncclInProgress) {
            snprintf(why, sizeof(why), "%s", ncclGetLastError(group->comm));
        }
        pthread_mutex_unlock(&engine->call_lock);
        if (result == ncclSuccess) return DP_OK;
        if (result != ncclInProgress) {
            return dp_error_set(error, dp_nccl_status(result), "%.*s: %s%s%s",
                                (int)strcspn(what, "("), what, ncclGetErrorString(result),
                                why[0] != '\0' ? ": " : "", why);
        }
        if (group->settle_ns != 0 && dp_now_ns() - start_ns > group->settle_ns) {
            return dp_error_set(error, DP_ERR_TIMEOUT, "%.*s is still in progress after %llu ms",
                                (int)strcspn(what, "("), what,
                                (unsigned long long)(group->settle_ns / 1000000));
        }
        dp_nccl_back_off(&turns);
        if (!dp_nccl_enter(group)) return dp_nccl_refuse(group, error);
    }
}

/* 1: an earlier operation is under way, which this one may have to wait for. */
static int has_earlier(dp_nccl_engine_t *engine, const dp_nccl_task_t *task)
{
    int has;

    if (task == NULL) return 0;
    pthread_mutex_lock(&engine->lock);
    has = task->next != NULL;
    pthread_mutex_unlock(&engine->lock);
    return has;
}

/* Asks and never calls cudaEventSynchronize(): a thread that sleeps in CUDA would not notice that
 * the engine is aborted, and the event may never come. */
dp_status_t dp_nccl_await_event(dp_nccl_engine_t *engine, cudaEvent_t event, uint64_t limit_ns,
                                const dp_nccl_task_t *task, dp_error_t *error)
{
    uint64_t start_ns = dp_now_ns();
    unsigned turns = 0;

    for (;;) {
        const cudaError_t result = cudaEventQuery(event);

        if (result == cudaSuccess) return DP_OK;
        if (result != cudaErrorNotReady) return DP_NCCL_CUDA(result, error);
        (void)cudaGetLastError(); /* as which CUDA notes it */
        if (dp_nccl_is_aborted(engine)) {
            return dp_error_set(error, DP_ERR_ABORTED, "the engine is aborted");
        }
        if (has_earlier(engine, task)) start_ns = dp_now_ns();
        if (limit_ns != 0 && dp_now_ns() - start_ns > limit_ns) {
            return dp_error_set(error, DP_ERR_TIMEOUT, "nothing came within %llu ms",
                                (unsigned long long)(limit_ns / 1000000));
        }
        dp_nccl_back_off(&turns);
    }
}

dp_status_t dp_nccl_await_keeper(dp_nccl_group_t *group, dp_error_t *error)
{
    dp_nccl_engine_t *engine = group->engine;

    pthread_mutex_lock(&engine->lock);
    while (engine->jobs.left > 0 && !dp_nccl_is_aborted(engine))
        pthread_cond_wait(&engine->change, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
    return dp_nccl_is_aborted(engine) ? dp_nccl_refuse(group, error) : DP_OK;
}

/* Hands a communicator to the keeper. lock is held. */
static void queue_job(dp_nccl_group_t *group)
{
    dp_nccl_engine_t *engine = group->engine;

    *engine->jobs.tail = group;
    engine->jobs.tail = &group->next_job;
    engine->jobs.left++;
    pthread_cond_broadcast(&engine->change);
}

/* ---- Versions ------------------------------------------------------------------------------- */

/* From here on NCCL starts the kernels of several communicators in the order they are issued in
 * (NCCL_LAUNCH_ORDER_IMPLICIT). Nothing newer is called: a function that the header has and an
 * older library lacks must stay unused, or the plug-in cannot be opened beside that library. A
 * library does not read fields of ncclConfig_t that it does not know. */
#define OLDEST 22602

/* NCCL_VERSION_CODE has had two forms: 2708 was 2.7.8, 22602 is 2.26.2. */
static int major_of(int version)
{
    return version / (version < 10000 ? 1000 : 10000);
}

static void format_version(int version, char *text, size_t room)
{
    const int unit = version < 10000 ? 1000 : 10000;

    snprintf(text, room, "%d.%d.%d", version / unit, version % unit / 100, version % 100);
}

/* Where NCCL was loaded from: a file that the program has loaded already comes first. */
static const char *library_path(void)
{
    ncclResult_t (*known)(int *) = ncclGetVersion;

    return dp_library_path(&known);
}

void dp_engine_nccl_describe(char *text, size_t room)
{
    char found[24];
    char built[24];
    int version = 0;

    if (ncclGetVersion(&version) != ncclSuccess) version = 0;
    format_version(version, found, sizeof(found));
    format_version(NCCL_VERSION_CODE, built, sizeof(built));
    snprintf(text, room, "NCCL %s (%s), built with %s", found, library_path(), built);
}

static dp_status_t check_version(const dp_nccl_engine_t *engine, int *version, dp_error_t *error)
{
    const ncclResult_t result = ncclGetVersion(version);
    char found[24];
    char oldest[24];
    char built[24];

    if (result != ncclSuccess) {
        return dp_error_set(error, DP_ERR_SYSTEM, "rank %d: nccl: no version: %s", engine->rank,
                            ncclGetErrorString(result));
    }
    if (*version >= OLDEST && major_of(*version) == NCCL_MAJOR) return DP_OK;
    format_version(*version, found, sizeof(found));
    format_version(OLDEST, oldest, sizeof(oldest));
    format_version(NCCL_VERSION_CODE, built, sizeof(built));
    return dp_error_set(error, DP_ERR_UNSUPPORTED,
                        "rank %d: nccl: version %s is there (%s), but at least %s of NCCL %d is "
                        "needed; this was built with %s",
                        engine->rank, found, library_path(), oldest, NCCL_MAJOR, built);
}

/* ---- Making --------------------------------------------------------------------------------- */

/* Until NCCL has made the communicator or says why not. */
static dp_status_t await_init(dp_nccl_group_t *group, dp_error_t *error)
{
    dp_nccl_engine_t *engine = group->engine;
    const uint64_t deadline_ns = dp_now_ns() + engine->limits.start_ns;
    unsigned turns = 0;

    for (;;) {
        ncclResult_t state = ncclInternalError;
        char why[160] = "";

        if (!dp_nccl_enter(group)) return dp_nccl_refuse(group, error);
        if (ncclCommGetAsyncError(group->comm, &state) != ncclSuccess) state = ncclInternalError;
        if (state != ncclSuccess && state != ncclInProgress) {
            snprintf(why, sizeof(why), "%s", ncclGetLastError(group->comm));
        }
        pthread_mutex_unlock(&engine->call_lock);
        if (state == ncclSuccess) return DP_OK;
        if (state != ncclInProgress) {
            return dp_error_set(error, dp_nccl_status(state),
                                "rank %d: nccl: making the communicator%s of %d ranks: %s%s%s",
                                engine->rank, group->title, group->size, ncclGetErrorString(state),
                                why[0] != '\0' ? ": " : "", why);
        }
        if (dp_now_ns() > deadline_ns) {
            char hint[120] = "";

            if (engine->interface[0] != '\0' && dp_environment("NCCL_SOCKET_IFNAME") == NULL) {
                snprintf(hint, sizeof(hint),
                         "; NCCL has chosen a network itself: NCCL_SOCKET_IFNAME==%s is the one on "
                         "which the nodes have met",
                         engine->interface);
            }
            return dp_error_set(
                error, DP_ERR_TIMEOUT,
                "rank %d: nccl: the communicator%s of %d ranks is still being made after %llu ms%s",
                engine->rank, group->title, group->size,
                (unsigned long long)(engine->limits.start_ns / 1000000), hint);
        }
        dp_nccl_back_off(&turns);
    }
}

/* Returns when all ranks of the group have come here. group->comm is stored under call_lock at
 * once, while it is still being made, so that an abort finds it and can break it. */
static dp_status_t init_comm(dp_nccl_group_t *group, const ncclUniqueId *id, dp_error_t *error)
{
    dp_nccl_engine_t *engine = group->engine;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    ncclResult_t result;

    config.blocking = 0;
    config.commName = group->name;
    if (engine->max_ctas > 0) config.maxCTAs = engine->max_ctas;
    pthread_mutex_lock(&engine->call_lock);
    result = ncclCommInitRankConfig(&comm, group->size, *id, group->rank, &config);
    group->comm = comm;
    pthread_mutex_unlock(&engine->call_lock);
    if ((result != ncclSuccess && result != ncclInProgress) || comm == NULL) {
        return dp_error_set(error, dp_nccl_status(result),
                            "rank %d: nccl: making the communicator%s of %d ranks: %s",
                            engine->rank, group->title, group->size, ncclGetErrorString(result));
    }
    return await_init(group, error);
}

/* A rank's first message to the others, before there is a communicator. */
typedef struct hello {
    uint32_t version;
    cudaUUID_t gpu;
    ncclUniqueId id;      /* rank 0's */
    ncclUniqueId ordered; /* likewise, of an ordered world's second communicator */
} nccl_hello_t;

static dp_status_t compare_hellos(const dp_nccl_engine_t *engine, void *const *values,
                                  const size_t *bytes, dp_error_t *error)
{
    const nccl_hello_t *first = values[0];

    for (int i = 0; i < engine->size; i++) {
        const nccl_hello_t *hello = values[i];
        char here[24];
        char there[24];

        if (bytes[i] != sizeof(*hello)) {
            return dp_error_set(error, DP_ERR_MISMATCH,
                                "nccl: rank %d introduces itself with %zu bytes, rank %d with %zu",
                                i, bytes[i], engine->rank, sizeof(*hello));
        }
        if (hello->version == first->version) continue;
        format_version((int)first->version, here, sizeof(here));
        format_version((int)hello->version, there, sizeof(there));
        return dp_error_set(error, DP_ERR_MISMATCH, "rank 0 has NCCL %s, rank %d (%s) has %s", here,
                            i, engine->topology->host_name[engine->topology->node[i]], there);
    }
    return DP_OK;
}

#define SEVERAL_RANKS 23000 /* from here on NCCL_MULTI_RANK_GPU_ENABLE=1 allows them */

/* NCCL refuses two ranks on one GPU of what it takes for one host, and not in words that help. */
static dp_status_t explain_refusal(const dp_nccl_engine_t *engine, void *const *values,
                                   dp_error_t *error)
{
    char found[24];

    for (int i = 1; i < engine->size; i++) {
        for (int k = 0; k < i; k++) {
            const nccl_hello_t *one = values[k];
            const nccl_hello_t *other = values[i];

            if (one == NULL || other == NULL) continue; /* nobody's */
            if (memcmp(&one->gpu, &other->gpu, sizeof(one->gpu)) != 0) continue;
            if (dp_environment("NCCL_MULTI_RANK_GPU_ENABLE") != NULL) {
                if (one->version >= SEVERAL_RANKS) return DP_ERR_INVALID; /* another reason */
                format_version((int)one->version, found, sizeof(found));
                return dp_error_set(error, DP_ERR_CONFIG,
                                    "ranks %d and %d are on one GPU of %s, and NCCL_MULTI_RANK_GPU_"
                                    "ENABLE wants NCCL 2.30 or newer, this is %s: unset it, and "
                                    "dprun --share-gpu makes each rank a host of its own",
                                    k, i, engine->topology->host_name[engine->topology->node[i]],
                                    found);
            }
            return dp_error_set(error, DP_ERR_CONFIG,
                                "ranks %d and %d are on one GPU of %s, which NCCL refuses: give "
                                "each rank its own; to try several on one, dprun --share-gpu",
                                k, i, engine->topology->host_name[engine->topology->node[i]]);
        }
    }
    return DP_ERR_INVALID;
}

static dp_status_t fill_hello(const dp_nccl_engine_t *engine, nccl_hello_t *hello,
                              dp_error_t *error)
{
    struct cudaDeviceProp properties;
    int version = 0;
    dp_status_t status = check_version(engine, &version, error);

    memset(hello, 0, sizeof(*hello));
    hello->version = (uint32_t)version;
    if (status != DP_OK) return status;
    status = DP_NCCL_CUDA(cudaGetDeviceProperties(&properties, engine->gpu), error);
    hello->gpu = properties.uuid;
    return status;
}

/* Versions are compared before NCCL is called: ranks of different versions would speak different
 * protocols, and the first thing a person saw of that would be a hang. */
dp_status_t dp_nccl_connect_world(dp_nccl_engine_t *engine, dp_error_t *error)
{
    void **values = calloc((size_t)engine->size, sizeof(*values));
    size_t *bytes = calloc((size_t)engine->size, sizeof(*bytes));
    ncclResult_t result = ncclSuccess;
    nccl_hello_t hello;
    dp_status_t status = fill_hello(engine, &hello, error);

    if (status == DP_OK) dp_nccl_memory_init(engine, (int)hello.version);
    if (status == DP_OK && engine->rank == 0) result = ncclGetUniqueId(&hello.id);
    if (status == DP_OK && engine->rank == 0 && engine->ordered != NULL && result == ncclSuccess)
        result = ncclGetUniqueId(&hello.ordered);
    if (values == NULL || bytes == NULL) {
        free(values);
        free(bytes);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "nccl: no memory");
    }
    if (result != ncclSuccess) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "rank 0: nccl: no unique id: %s: %s",
                              ncclGetErrorString(result), ncclGetLastError(NULL));
    }
    if (status == DP_OK) {
        status = engine->bootstrap->ops->exchange(engine->bootstrap, "nccl", &hello, sizeof(hello),
                                                  values, bytes,
                                                  dp_now_ns() + engine->limits.start_ns, error);
    }
    if (status == DP_OK) status = compare_hellos(engine, values, bytes, error);
    if (status == DP_OK) {
        status = init_comm(engine->world, &((const nccl_hello_t *)values[0])->id, error);
    }
    if (status == DP_OK && engine->ordered != NULL) {
        status = init_comm(engine->ordered, &((const nccl_hello_t *)values[0])->ordered, error);
    }
    if (status == DP_ERR_INVALID) status = explain_refusal(engine, values, error);
    for (int i = 0; i < engine->size; i++)
        free(values[i]);
    free(values);
    free(bytes);
    if (status == DP_OK) engine->world->state = DP_NCCL_READY;
    if (status == DP_OK && engine->ordered != NULL) {
        engine->ordered->state = DP_NCCL_READY;
        dp_nccl_memory_join(engine->ordered);
    }
    return status;
}

/* ---- Groups --------------------------------------------------------------------------------- */

void dp_nccl_group_free(dp_nccl_group_t *group)
{
    if (group == NULL) return;
    if (group->id_came != NULL) cudaEventDestroy(group->id_came);
    pthread_mutex_destroy(&group->issue_lock);
    free(group->ranks);
    free(group);
}

dp_status_t dp_nccl_group_make(dp_nccl_engine_t *engine, const dp_engine_members_t *members,
                               dp_nccl_group_t **out, dp_error_t *error)
{
    dp_nccl_group_t *group = calloc(1, sizeof(*group));

    if (group != NULL) group->ranks = calloc((size_t)members->count, sizeof(*group->ranks));
    if (group == NULL || group->ranks == NULL) {
        free(group);
        dp_error_set(error, DP_ERR_NO_MEMORY, "nccl: no memory for group '%s'", members->name);
        return DP_ERR_NO_MEMORY;
    }
    pthread_mutex_init(&group->issue_lock, NULL);
    group->engine = engine;
    group->uid = members->uid;
    group->size = members->count;
    group->settle_ns = engine->limits.operation_ns;
    group->rank = -1;
    for (int i = 0; i < members->count; i++) {
        group->ranks[i] = members->ranks[i];
        if (members->ranks[i] == engine->rank) group->rank = i;
    }
    snprintf(group->name, sizeof(group->name), "dp-%.50s", members->name);
    if (members->uid != 0) {
        snprintf(group->title, sizeof(group->title), " of group '%.60s'", members->name);
    }
    if (group->rank < 0) {
        dp_nccl_group_free(group);
        dp_error_set(error, DP_ERR_INVALID, "nccl: rank %d is not in group '%s'", engine->rank,
                     members->name);
        return DP_ERR_INVALID;
    }
    *out = group;
    return DP_OK;
}

/* The lowest rank's id goes to all others. ncclGroupEnd() is called after an error too, here and in
 * every function of this shape: NCCL counts open groups per thread, and one that stays open would
 * swallow all later calls of this thread. */
static ncclResult_t send_id(dp_nccl_group_t *group, ncclUniqueId *id)
{
    dp_nccl_engine_t *engine = group->engine;
    ncclComm_t world = engine->world->comm;
    ncclResult_t result = ncclGroupStart();
    ncclResult_t end;

    if (result != ncclSuccess) return result;
    if (group->rank != 0) {
        result = ncclRecv(id, sizeof(*id), ncclUint8, group->ranks[0], world,
                          engine->issuing[DP_LANE_MAIN].side);
    }
    for (int i = 1; group->rank == 0 && result == ncclSuccess && i < group->size; i++) {
        result = ncclSend(id, sizeof(*id), ncclUint8, group->ranks[i], world,
                          engine->issuing[DP_LANE_MAIN].side);
    }
    end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
}

/* The id has arrived here when group->id_came is reached; nobody else uses engine->making.id before
 * the keeper has made the communicator. */
static dp_status_t exchange_id(dp_nccl_group_t *group, dp_error_t *error)
{
    dp_nccl_engine_t *engine = group->engine;
    ncclUniqueId *id = engine->making.id;
    ncclUniqueId *device_id = engine->making.device_id;
    dp_status_t status;

    if (group->rank == 0) {
        const ncclResult_t result = ncclGetUniqueId(id);

        if (result != ncclSuccess) {
            return dp_error_set(error, DP_ERR_SYSTEM, "no unique id: %s",
                                ncclGetErrorString(result));
        }
        if (group->size == 1) return DP_OK;
        status = DP_NCCL_CUDA(cudaMemcpyAsync(device_id, id, sizeof(*id), cudaMemcpyHostToDevice,
                                              engine->issuing[DP_LANE_MAIN].side),
                              error);
        if (status != DP_OK) return status;
    }
    status = DP_NCCL_CUDA(cudaEventCreateWithFlags(&group->id_came, cudaEventDisableTiming), error);
    if (status != DP_OK) return status;
    pthread_mutex_lock(&engine->world->issue_lock);
    status = DP_NCCL_CALL(engine->world, send_id(group, device_id), error);
    pthread_mutex_unlock(&engine->world->issue_lock);
    if (status == DP_OK && group->rank != 0) {
        status = DP_NCCL_CUDA(cudaMemcpyAsync(id, device_id, sizeof(*id), cudaMemcpyDeviceToHost,
                                              engine->issuing[DP_LANE_MAIN].side),
                              error);
    }
    if (status != DP_OK) return status;
    return DP_NCCL_CUDA(cudaEventRecord(group->id_came, engine->issuing[DP_LANE_MAIN].side), error);
}

/* A communicator of these ranks: has the keeper make it. title: in texts; NULL: after its name. */
static dp_status_t ask_for_comm(dp_nccl_engine_t *engine, const dp_engine_members_t *members,
                                const char *title, dp_nccl_group_t **out, dp_error_t *error)
{
    dp_error_t why = {DP_OK, ""};
    dp_nccl_group_t *made = NULL;
    dp_status_t status = engine->device->ops->enter(engine->device, NULL);

    if (status == DP_OK) status = dp_nccl_group_make(engine, members, &made, error);
    if (status != DP_OK) return status;
    if (title != NULL) snprintf(made->title, sizeof(made->title), "%s", title);
    status = dp_nccl_await_keeper(made, &why);
    if (status == DP_OK) status = exchange_id(made, &why);
    if (status != DP_OK) {
        dp_nccl_group_free(made);
        return dp_error_set(error, status, "rank %d: nccl: making group '%s': %s", engine->rank,
                            members->name, why.text);
    }
    pthread_mutex_lock(&engine->lock);
    made->next = engine->groups;
    engine->groups = made;
    queue_job(made);
    pthread_mutex_unlock(&engine->lock);
    *out = made;
    return DP_OK;
}

/* Launch thread. Returns before the communicator is there: the keeper makes it, and the next
 * operation of this rank, whatever its group, waits for the keeper. */
dp_status_t dp_nccl_group_create(dp_engine_t *self, const dp_engine_members_t *members,
                                 dp_engine_group_t **group, dp_error_t *error)
{
    dp_nccl_group_t *made = NULL;
    dp_status_t status;

    if (members->group_index == 0 || members->uid == 0) {
        return dp_error_set(error, DP_ERR_INVALID, "nccl: group '%s' has the world's number",
                            members->name);
    }
    status = ask_for_comm(dp_nccl_of(self), members, NULL, &made, error);
    if (status == DP_OK) *group = (dp_engine_group_t *)(void *)made;
    return status;
}

dp_status_t dp_nccl_open_gather_lane(dp_engine_t *self, dp_engine_group_t *group, dp_error_t *error)
{
    dp_nccl_engine_t *engine = dp_nccl_of(self);
    dp_nccl_group_t *opens = group != NULL ? (dp_nccl_group_t *)(void *)group : engine->world;
    char name[64];
    const dp_engine_members_t members = {
        .uid = opens->uid, .ranks = opens->ranks, .count = opens->size, .name = name};

    if (opens->gathers != NULL) return DP_OK;
    snprintf(name, sizeof(name), "%.40s gathers", opens->name + strlen("dp-"));
    return ask_for_comm(engine, &members, opens->title, &opens->gathers, error);
}

/* Has the keeper end it. lock is held. */
static void end_comm(dp_nccl_group_t *group)
{
    if (dp_nccl_is_aborted(group->engine) || group->state != DP_NCCL_READY) return;
    group->state = DP_NCCL_ENDING;
    queue_job(group);
}

/* Launch thread, in the same order on all ranks. A group that is still being made when the engine
 * is aborted is not queued: dp_nccl_keep_break() ends every communicator then. */
void dp_nccl_group_destroy(dp_engine_t *self, dp_engine_group_t *group)
{
    dp_nccl_engine_t *engine = dp_nccl_of(self);
    dp_nccl_group_t *ended = (dp_nccl_group_t *)(void *)group;

    if (group == NULL) return;
    pthread_mutex_lock(&engine->lock);
    if (ended->gathers != NULL) end_comm(ended->gathers);
    end_comm(ended);
    pthread_mutex_unlock(&engine->lock);
}

/* ---- The keeper's part ---------------------------------------------------------------------- */

/* Memory is registered before the state is READY, so that no operation runs over a communicator
 * which does not know the buffers yet. */
void dp_nccl_keep_make(dp_nccl_group_t *group)
{
    dp_nccl_engine_t *engine = group->engine;
    dp_error_t error = {DP_OK, ""};
    dp_error_t why = {DP_OK, ""};
    dp_status_t status = DP_OK;

    if (group->id_came != NULL) {
        status = dp_nccl_await_event(engine, group->id_came, engine->limits.start_ns, NULL, &why);
        if (status != DP_OK) {
            dp_error_set(&error, status, "rank %d: nccl: the id%s from rank %d: %s", engine->rank,
                         group->title, group->ranks[0], why.text);
        }
    }
    if (status == DP_OK) {
        status = init_comm(group, engine->making.id, &error);
    }
    if (status != DP_OK) {
        dp_nccl_stop(engine, status, error.text);
        return;
    }
    dp_nccl_memory_join(group);
    pthread_mutex_lock(&engine->lock);
    group->state = DP_NCCL_READY;
    pthread_cond_broadcast(&engine->change);
    pthread_mutex_unlock(&engine->lock);
}

/* All operations are over on all ranks, or the communicator is broken instead. ncclCommFinalize()
 * is collective and may wait for other ranks; ncclCommDestroy() behind it frees what is local. From
 * here on no rank owes this communicator anything, so a call may take as long as a start. */
void dp_nccl_keep_end(dp_nccl_group_t *group)
{
    dp_nccl_engine_t *engine = group->engine;
    dp_error_t error = {DP_OK, ""};
    dp_status_t status;

    dp_nccl_memory_leave(group);
    group->settle_ns = engine->limits.start_ns;
    pthread_mutex_lock(&group->issue_lock);
    status = DP_NCCL_CALL(group, ncclCommFinalize(group->comm), &error);
    pthread_mutex_unlock(&group->issue_lock);
    pthread_mutex_lock(&engine->call_lock);
    if (group->comm != NULL) {
        if (status == DP_OK) {
            ncclCommDestroy(group->comm);
        } else {
            if (status != DP_ERR_ABORTED) {
                dp_log_warn(engine->log, "nccl: the communicator%s does not end in peace: %s",
                            group->title, error.text);
            }
            ncclCommAbort(group->comm);
        }
    }
    group->comm = NULL;
    pthread_mutex_unlock(&engine->call_lock);
}

/*
 * ncclCommAbort() first tells the kernels to stop, without waiting and without CUDA. Then it waits,
 * for whatever thread of NCCL's own is issuing something, and for the whole device when it frees
 * memory; so it may wait for what another communicator has on the device. Hence all of them are
 * aborted at a time: each group's by a thread of its own, the world's by the keeper.
 *
 * ncclCommRevoke() would tell them one after the other. But it is not in NCCL before 2.28.7; it
 * must not be called while a call is in progress, as it then frees what the abort needs once more;
 * and at its end it clears NCCL's flag that stops the kernels, which the abort may have just set.
 */
static void *break_group(void *argument)
{
    dp_nccl_group_t *group = argument;

    if (group->comm != NULL) ncclCommAbort(group->comm);
    group->comm = NULL;
    return NULL;
}

void dp_nccl_keep_break(dp_nccl_engine_t *engine)
{
    dp_nccl_group_t *groups;

    pthread_mutex_lock(&engine->lock);
    groups = engine->groups; /* nobody else removes one, and none is added after an abort */
    pthread_mutex_unlock(&engine->lock);
    pthread_mutex_lock(&engine->call_lock);
    for (dp_nccl_group_t *at = groups; at != NULL; at = at->next)
        at->has_breaker = dp_thread_start(&at->breaker, break_group, at) == 0;
    if (engine->world != NULL) (void)break_group(engine->world);
    for (dp_nccl_group_t *at = groups; at != NULL; at = at->next) {
        if (at->has_breaker) {
            pthread_join(at->breaker, NULL);
        } else {
            (void)break_group(at); /* there was no thread for it */
        }
    }
    pthread_mutex_unlock(&engine->call_lock);
}
