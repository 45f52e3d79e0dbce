/*
 * job.c - turns a command line into a job: program, node, cores, environment.
 *
 * dprun.c calls it before the agent exists. Variables that a user has set stay: dprun's own choices
 * (thread counts, UCX's settings) only fill gaps.
 */
#include "launcher/dprun/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/resource.h>
#include <unistd.h>

/* BLAS and OpenMP libraries start a thread per core of the machine unless told otherwise. */
static const char *const thread_variables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                               "MKL_NUM_THREADS", "BLIS_NUM_THREADS"};

/*
 * UCX installs handlers for SIGSEGV and friends in every process that links it (they would hide the
 * true signal from our report and print a page) and for a debug signal; and it warns of every
 * UCX_ variable it does not know.
 */
static const char *const ucx_variables[][2] = {
    {"UCX_ERROR_SIGNALS", ""}, {"UCX_DEBUG_SIGNO", "0"}, {"UCX_WARN_UNUSED_ENV_VARS", "n"}};

/* A script whose interpreter is not there makes execve() say that the script is not. A line that
 * ends as on Windows names one with a "\r" at its end, which nobody sees. */
static int check_interpreter(const char *name, const char *path, dp_error_t *error)
{
    char line[256] = "";
    char *at;
    FILE *file = fopen(path, "re");
    int has_return;

    if (file == NULL) return 0; /* may be run, not read */
    if (fgets(line, sizeof(line), file) == NULL) line[0] = '\0';
    fclose(file);
    if (strncmp(line, "#!", 2) != 0) return 0;
    at = line + 2 + strspn(line + 2, " \t");
    at[strcspn(at, " \t\n")] = '\0';
    if (at[0] != '/' || access(at, F_OK) == 0) return 0;
    has_return = at[strlen(at) - 1] == '\r';
    if (has_return) at[strlen(at) - 1] = '\0';
    dp_error_set(error, DP_ERR_INVALID, "program %s: its interpreter \"%s%s\" is not there%s%s",
                 name, at, has_return ? "\\r" : "",
                 has_return ? ": its lines end as on Windows; mend it: sed -i 's/\\r$//' " : "",
                 has_return ? name : "");
    return DP_EXIT_NOT_FOUND;
}

int dp_program_find(const char *name, const char *path_list, char *found, size_t room,
                    dp_error_t *error)
{
    struct stat info;
    const char *entry = path_list;
    int seen = 0; /* there is a file of that name, only not one to run */

    if (strchr(name, '/') != NULL) {
        snprintf(found, room, "%s", name);
        if (stat(name, &info) != 0) {
            dp_error_set(error, DP_ERR_INVALID, "program %s: %s", name, strerror(errno));
            return errno == EACCES ? DP_EXIT_NOT_EXECUTABLE : DP_EXIT_NOT_FOUND;
        }
        if (S_ISDIR(info.st_mode)) {
            dp_error_set(error, DP_ERR_INVALID, "program %s: is a directory", name);
            return DP_EXIT_NOT_EXECUTABLE;
        }
        if (access(name, X_OK) != 0) {
            dp_error_set(error, DP_ERR_INVALID, "program %s: not executable (chmod +x %s)", name,
                         name);
            return DP_EXIT_NOT_EXECUTABLE;
        }
        return check_interpreter(name, found, error);
    }
    while (entry != NULL && name[0] != '\0') {
        const char *end = strchrnul(entry, ':');
        int bytes = (int)(end - entry);

        /* An empty entry means the working directory. */
        snprintf(found, room, "%.*s%s%s", bytes, entry, bytes == 0 ? "./" : "/", name);
        if (stat(found, &info) == 0 && S_ISREG(info.st_mode)) {
            if (access(found, X_OK) == 0) return check_interpreter(name, found, error);
            seen = 1;
        }
        entry = *end == ':' ? end + 1 : NULL;
    }
    if (seen) {
        dp_error_set(error, DP_ERR_INVALID, "program %s: found in PATH, but not executable", name);
        return DP_EXIT_NOT_EXECUTABLE;
    }
    if (stat(name, &info) == 0 && S_ISREG(info.st_mode)) {
        dp_error_set(error, DP_ERR_INVALID, "program %s: not in PATH; did you mean ./%s?", name,
                     name);
    } else {
        dp_error_set(error, DP_ERR_INVALID, "program %s: not found in PATH", name);
    }
    return DP_EXIT_NOT_FOUND;
}

/* Finds the program as a rank in the folder of --wdir finds it. */
static int find_program(dp_job_t *job, const char *path_list, dp_error_t *error)
{
    const char *directory = job->command->directory;
    const char *name = job->command->argv[0];
    int here, code;

    if (directory == NULL) {
        return dp_program_find(name, path_list, job->program, sizeof(job->program), error);
    }
    here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (here < 0 || chdir(directory) != 0) {
        dp_error_set(error, DP_ERR_CONFIG, "node %s: the working folder %s (--wdir): %s", job->host,
                     directory, strerror(errno));
        if (here >= 0) close(here);
        return 1;
    }
    code = dp_program_find(name, path_list, job->program, sizeof(job->program), error);
    if (getcwd(job->directory, sizeof(job->directory)) == NULL || fchdir(here) != 0) {
        dp_error_set(error, DP_ERR_SYSTEM, "the working folder: %s", strerror(errno));
        code = 1;
    }
    close(here);
    return code;
}

static int remember_own_variable(dp_job_t *job, const char *name)
{
    char **given;

    for (size_t i = 0; i < job->given_count; i++) {
        if (strcmp(job->given[i], name) == 0) return 0;
    }
    given = realloc(job->given, (job->given_count + 1) * sizeof(*given));
    if (given == NULL) return -1;
    job->given = given;
    given[job->given_count] = strdup(name);
    if (given[job->given_count] == NULL) return -1;
    job->given_count++;
    return 0;
}

/* Sets a variable and remembers that it is ours. */
static int set_own_variable(dp_job_t *job, const char *name, const char *value)
{
    if (dp_env_set(&job->env, name, value) != 0) return -1;
    return remember_own_variable(job, name);
}

static int set_default_variable(dp_job_t *job, const char *name, const char *value)
{
    int added = dp_env_default(&job->env, name, value);

    return added > 0 ? remember_own_variable(job, name) : added;
}

/* Flags and --config lines reach the ranks as DP_ variables; settings from the environment are
 * inherited anyway. */
static int give_knobs(dp_job_t *job)
{
    const dp_config_t *config = &job->command->config;

    for (size_t i = 0; i < dp_config_count(); i++) {
        const dp_setting_t *setting = dp_config_setting(i);
        char name[128];
        char value[DP_CONFIG_TEXT_MAX + 64];

        if (setting->is_internal) continue;
        if (config->source[i] != DP_FROM_FILE && config->source[i] != DP_FROM_FLAG) continue;
        snprintf(name, sizeof(name), "DP_%s", setting->name);
        dp_config_format(config, i, value, sizeof(value));
        if (set_own_variable(job, name, value) != 0) return -1;
    }
    return 0;
}

#define SEVERAL_RANKS "NCCL_MULTI_RANK_GPU_ENABLE"

/* Ranks share time slices of the GPU: nothing may waste them. Streams have a queue of the hardware
 * each, and kernels are loaded before they are needed: otherwise what waits for another rank holds
 * up what that rank waits for. */
static const char *const share_gpu_variables[][2] = {
    {"NCCL_NVLS_ENABLE", "0"},
    {"NCCL_MNNVL_ENABLE", "0"},
    {"NCCL_MAX_CTAS", "4"},
    {"CUDA_VISIBLE_DEVICES", "0"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
    {"CUDA_MODULE_LOADING", "EAGER"},
};

/* NCCL refuses two ranks on one GPU of one host, but from 2.30 on where a person allows it. Each
 * rank becomes a host of its own, by NCCL_HOSTID (see dp_job_set_rank()), it sees no second one,
 * and all traffic goes through sockets. Other ways to find the others are off. */
static const char *const own_host_variables[][2] = {
    {"NCCL_NET", "Socket"},    {"NCCL_IB_DISABLE", "1"}, {"NCCL_P2P_DISABLE", "1"},
    {"NCCL_SHM_DISABLE", "1"}, {"NCCL_PROTO", "Simple"}, {"NCCL_ALGO", "Ring"},
};

/* dprun cannot know which NCCL the program will load, so the person who knows says it. */
static int allows_several_ranks(const dp_job_t *job)
{
    const char *value = dp_env_get(&job->env, SEVERAL_RANKS);

    return value != NULL && strcmp(value, "0") != 0;
}

int dp_job_has_own_hosts(const dp_job_t *job)
{
    return job->command->shares_gpu && !allows_several_ranks(job);
}

static int set_default_variables(dp_job_t *job, const char *const (*list)[2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (set_default_variable(job, list[i][0], list[i][1]) < 0) return -1;
    }
    return 0;
}

/* Behind --env, which may allow several ranks. */
static int give_shared_gpu(dp_job_t *job)
{
    if (set_default_variables(job, share_gpu_variables, DP_ARRAY_LEN(share_gpu_variables)) != 0)
        return -1;
    if (!dp_job_has_own_hosts(job)) return 0;
    return set_default_variables(job, own_host_variables, DP_ARRAY_LEN(own_host_variables));
}

/* The variables that torch.distributed reads. A value that a user has set stays; one that an outer
 * dprun set does not, as this process is one of its ranks then. */
static int set_torch_variable(dp_job_t *job, const char *name, const char *value)
{
    if (job->is_nested) return set_own_variable(job, name, value);
    return set_default_variable(job, name, value) < 0 ? -1 : 0;
}

static int give_torch_variables(dp_job_t *job)
{
    const dp_place_t *place = &job->command->place;
    char number[16];

    job->is_nested = dp_env_get(&job->env, "DP_BOOTSTRAP_FD") != NULL;
    job->sets_rank = job->is_nested || dp_env_get(&job->env, "RANK") == NULL;
    job->sets_local_rank = job->is_nested || dp_env_get(&job->env, "LOCAL_RANK") == NULL;
    snprintf(number, sizeof(number), "%d", job->size);
    if (set_torch_variable(job, "LOCAL_WORLD_SIZE", number) != 0) return -1;
    snprintf(number, sizeof(number), "%d", place->size > 0 ? place->size : job->size);
    if (set_torch_variable(job, "WORLD_SIZE", number) != 0) return -1;
    snprintf(number, sizeof(number), "%d", place->node);
    return set_torch_variable(job, "GROUP_RANK", number);
}

int dp_job_ticket_fd(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max > DP_TICKET_FD) return DP_TICKET_FD;
    return (int)limit.rlim_max - 1;
}

/* NCCL reads its variables once in a process, so they are there before it starts. Kernels of
 * several communicators start in the order they are issued in (docs/nccl.md). NCCL's own meeting
 * keeps to loopback on one node, and else to the network that was named, if one was. */
static int give_nccl_variables(dp_job_t *job)
{
    const char *network = job->command->place.size > 0 ? job->command->config.net_interface : "lo";
    char exact[DP_CONFIG_TEXT_MAX + 1];

    if (set_default_variable(job, "NCCL_LAUNCH_ORDER_IMPLICIT", "1") < 0) return -1;
    if (network[0] == '\0') return 0;
    snprintf(exact, sizeof(exact), "=%s", network); /* and not every one that begins so */
    return set_default_variable(job, "NCCL_SOCKET_IFNAME", exact) < 0 ? -1 : 0;
}

static int give_variables(dp_job_t *job)
{
    const dp_command_t *command = job->command;
    char number[16];

    if (give_nccl_variables(job) != 0) return -1;
    if (set_default_variables(job, ucx_variables, DP_ARRAY_LEN(ucx_variables)) != 0) return -1;
    snprintf(number, sizeof(number), "%d", job->threads);
    for (size_t i = 0; i < DP_ARRAY_LEN(thread_variables); i++) {
        if (set_default_variable(job, thread_variables[i], number) < 0) return -1;
    }
    if (give_knobs(job) != 0) return -1;
    for (size_t i = 0; i < command->variable_count; i++) {
        const char *entry = command->variables[i];
        const char *equals = strchr(entry, '=');
        char name[256];

        snprintf(name, sizeof(name), "%.*s", (int)(equals - entry), entry);
        if (set_own_variable(job, name, equals + 1) != 0) return -1;
    }
    if (command->shares_gpu && give_shared_gpu(job) != 0) return -1;
    snprintf(number, sizeof(number), "%d", job->size);
    if (set_own_variable(job, "DP_LOCAL_SIZE", number) != 0) return -1;
    snprintf(number, sizeof(number), "%d",
             command->place.size > 0 ? command->place.size : job->size);
    if (set_own_variable(job, "DP_SIZE", number) != 0) return -1;
    if (give_torch_variables(job) != 0) return -1; /* before DP_BOOTSTRAP_FD is ours */
    snprintf(number, sizeof(number), "%d", dp_job_ticket_fd());
    return set_own_variable(job, "DP_BOOTSTRAP_FD", number);
}

/* The one newer system call that a job cannot do without: the ranks' ticket and libdp's shared
 * memory are memory files. */
static dp_status_t check_kernel(dp_error_t *error)
{
    const int fd = memfd_create("dprun-check", MFD_CLOEXEC);

    if (fd < 0) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "memfd_create: %s: ranks need it (Linux 3.17 or newer, and a sandbox "
                            "that permits it)",
                            strerror(errno));
    }
    close(fd);
    return DP_OK;
}

dp_status_t dp_job_init(dp_job_t *job, const dp_command_t *command, int *exit_code,
                        dp_error_t *error)
{
    const char *path = dp_environment("PATH");

    memset(job, 0, sizeof(*job));
    job->command = command;
    job->size = command->size;
    if (gethostname(job->host, sizeof(job->host) - 1) != 0) {
        snprintf(job->host, sizeof(job->host), "localhost");
    }
    *exit_code = find_program(job, path == NULL ? "/usr/bin:/bin" : path, error);
    if (*exit_code != 0) return DP_ERR_INVALID;
    *exit_code = 1;
    if (check_kernel(error) != DP_OK) return error->status;
    *exit_code = DP_EXIT_USAGE;
    if (dp_metrics_open(command->metrics, &job->metrics, error) != DP_OK) return error->status;
    *exit_code = 1;
    dp_cores_init(&job->cores);
    job->threads = dp_cores_share(&job->cores, job->size);
    if (dp_env_init(&job->env, environ) != 0 || give_variables(job) != 0 ||
        (job->directory[0] != '\0' && set_own_variable(job, "PWD", job->directory) != 0) ||
        dp_job_set_rank(job, 0) != 0) {
        dp_job_fini(job);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    *exit_code = 0;
    return DP_OK;
}

void dp_job_init_remote(dp_job_t *job, const dp_command_t *command)
{
    memset(job, 0, sizeof(*job));
    job->command = command;
    job->size = command->size;
    if (gethostname(job->host, sizeof(job->host) - 1) != 0) {
        snprintf(job->host, sizeof(job->host), "localhost");
    }
}

void dp_job_forget_secret(dp_job_t *job)
{
    explicit_bzero(&job->ticket.secret, sizeof(job->ticket.secret));
}

dp_status_t dp_job_start_metrics(dp_job_t *job, struct event_base *base)
{
    const dp_metrics_source_t source = {.run_dir = job->run_dir,
                                        .node = job->host,
                                        .first_rank = job->command->place.first_rank,
                                        .count = job->size};

    return dp_metrics_start(job->metrics, base, &source);
}

void dp_job_stop_metrics(dp_job_t *job)
{
    dp_metrics_close(job->metrics);
    job->metrics = NULL;
}

void dp_job_fini(dp_job_t *job)
{
    dp_job_stop_metrics(job);
    for (size_t i = 0; i < job->given_count; i++) {
        free(job->given[i]);
    }
    free(job->given);
    job->given = NULL;
    job->given_count = 0;
    dp_env_fini(&job->env);
    dp_cores_fini(&job->cores);
    explicit_bzero(&job->ticket, sizeof(job->ticket));
}

dp_status_t dp_job_set_run_dir(dp_job_t *job, const char *path, int owned, dp_error_t *error)
{
    snprintf(job->run_dir, sizeof(job->run_dir), "%s", path);
    job->owns_run_dir = owned;
    if (set_own_variable(job, "DP_RUN_DIR", path) != 0) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    return DP_OK;
}

dp_status_t dp_job_set_master(dp_job_t *job, const char *host, uint16_t port, dp_error_t *error)
{
    char number[16];

    snprintf(number, sizeof(number), "%u", port);
    if (set_torch_variable(job, "MASTER_ADDR", host) != 0 ||
        (port != 0 && set_torch_variable(job, "MASTER_PORT", number) != 0)) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    return DP_OK;
}

int dp_job_set_rank(dp_job_t *job, int rank)
{
    char number[16], local[16], own_host[64];

    snprintf(number, sizeof(number), "%d", job->command->place.first_rank + rank);
    snprintf(local, sizeof(local), "%d", rank);
    snprintf(own_host, sizeof(own_host), "dprun-%d-r%d", (int)getpid(), rank);
    if (dp_job_has_own_hosts(job) && set_own_variable(job, DP_JOB_HOST_OF_RANK, own_host) != 0)
        return -1;
    if (job->sets_rank && set_own_variable(job, "RANK", number) != 0) return -1;
    if (job->sets_local_rank && set_own_variable(job, "LOCAL_RANK", local) != 0) return -1;
    if (set_own_variable(job, "DP_RANK", number) != 0) return -1;
    return set_own_variable(job, "DP_LOCAL_RANK", local);
}
