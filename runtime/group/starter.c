/*
 * starter.c - one table of the variables that launchers leave, and the rank and job that follow.
 *
 * Called by bootstrap.c. A family is present if one of its markers is set, and complete if all that
 * it needs is. The first complete one is used. Half of a family, with no complete one beside it, is
 * an error: a world of one in its place would train N copies of the model side by side.
 */
#include "runtime/group/starter.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/config_value.h"

#define RANKS_MAX (1 << 20)
#define TEXT_ROOM 256

enum role {
    RANK,
    SIZE,
    LOCAL_RANK,
    LOCAL_SIZE,
    HOSTS, /* how many machines */
    FD,
    PORT,
    NUMBERS, /* the roles above are numbers, those below texts */
    ADDRESS = NUMBERS,
    JOB,
    STEP,
    RESTART,
    ROLES
};

enum { MARKER = 1, NEEDED = 2, NEEDED_BY_MORE = 4 /* than one rank */ };

typedef struct variable {
    enum role role;
    int flags;
    const char *names[3]; /* the first that is set counts */
} variable_t;

typedef struct family {
    dp_starter_kind_t kind;
    const char *name;
    const char *start; /* "start with ..." */
    const variable_t *variables;
    size_t count;
} family_t;

/* The values of one family's variables. */
typedef struct found {
    const family_t *family;
    const char *name[ROLES]; /* of the variable that is set, or NULL */
    int is_present;
    int is_complete;
    int number[NUMBERS];
    dp_error_t error; /* a number that cannot be */
    char text[ROLES][TEXT_ROOM];
} found_t;

static const variable_t dprun[] = {
    {RANK, NEEDED, {"DP_RANK"}},
    {SIZE, NEEDED, {"DP_SIZE"}},
    {LOCAL_RANK, NEEDED, {"DP_LOCAL_RANK"}},
    {LOCAL_SIZE, NEEDED, {"DP_LOCAL_SIZE"}},
    {FD, MARKER | NEEDED, {"DP_BOOTSTRAP_FD"}},
};
static const variable_t plain[] = {
    {RANK, MARKER | NEEDED, {"DP_RANK"}},         {SIZE, MARKER | NEEDED, {"DP_SIZE"}},
    {LOCAL_RANK, MARKER, {"DP_LOCAL_RANK"}},      {LOCAL_SIZE, MARKER, {"DP_LOCAL_SIZE"}},
    {ADDRESS, NEEDED_BY_MORE, {"DP_RENDEZVOUS"}},
};
static const variable_t torchrun[] = {
    {RANK, MARKER | NEEDED, {"RANK"}},          {SIZE, MARKER | NEEDED, {"WORLD_SIZE"}},
    {LOCAL_RANK, MARKER, {"LOCAL_RANK"}},       {LOCAL_SIZE, MARKER, {"LOCAL_WORLD_SIZE"}},
    {ADDRESS, NEEDED_BY_MORE, {"MASTER_ADDR"}}, {PORT, NEEDED_BY_MORE, {"MASTER_PORT"}},
    {JOB, 0, {"TORCHELASTIC_RUN_ID"}},          {RESTART, 0, {"TORCHELASTIC_RESTART_COUNT"}},
};
static const variable_t openmpi[] = {
    {RANK, MARKER | NEEDED, {"OMPI_COMM_WORLD_RANK"}},
    {SIZE, MARKER | NEEDED, {"OMPI_COMM_WORLD_SIZE"}},
    {LOCAL_RANK, MARKER, {"OMPI_COMM_WORLD_LOCAL_RANK"}},
    {LOCAL_SIZE, MARKER, {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
    {JOB, NEEDED_BY_MORE, {"PMIX_NAMESPACE"}},
};
static const variable_t pmi[] = {
    {RANK, MARKER | NEEDED, {"PMI_RANK"}},     {SIZE, MARKER | NEEDED, {"PMI_SIZE"}},
    {FD, MARKER | NEEDED_BY_MORE, {"PMI_FD"}}, {LOCAL_RANK, 0, {"MPI_LOCALRANKID"}},
    {LOCAL_SIZE, 0, {"MPI_LOCALNRANKS"}},      {JOB, 0, {"PMI_JOBID"}},
};
static const variable_t slurm[] = {
    {STEP, MARKER | NEEDED, {"SLURM_STEP_ID", "SLURM_STEPID"}},
    {RANK, NEEDED, {"SLURM_PROCID"}},
    {SIZE, NEEDED, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}},
    {JOB, NEEDED, {"SLURM_JOB_ID", "SLURM_JOBID"}},
    {LOCAL_RANK, 0, {"SLURM_LOCALID"}},
    {HOSTS, 0, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}},
    {RESTART, 0, {"SLURM_RESTART_COUNT"}},
};

/* In order of precedence. */
static const family_t families[] = {
    {DP_STARTER_DPRUN, "dprun", "start with dprun", dprun, DP_ARRAY_LEN(dprun)},
    {DP_STARTER_PLAIN, "plain variables", "start with dprun", plain, DP_ARRAY_LEN(plain)},
    {DP_STARTER_TORCHRUN, "torchrun", "start with torchrun", torchrun, DP_ARRAY_LEN(torchrun)},
    {DP_STARTER_OPENMPI, "Open MPI", "start with mpirun", openmpi, DP_ARRAY_LEN(openmpi)},
    {DP_STARTER_PMI, "PMI", "start with srun or mpiexec", pmi, DP_ARRAY_LEN(pmi)},
    {DP_STARTER_SLURM, "Slurm", "start with srun", slurm, DP_ARRAY_LEN(slurm)},
};

/* ---- Reading -------------------------------------------------------------------------------- */

/* Our own variables are settings; -1 and "" stand for unset. */
static int read_own(const dp_config_t *config, const char *name, char text[TEXT_ROOM])
{
    dp_config_format(config, dp_config_find(name + 3, NULL), text, TEXT_ROOM);
    return text[0] != '\0' && strcmp(text, "-1") != 0;
}

static void read_variable(const dp_config_t *config, dp_lookup_t lookup, void *context,
                          const variable_t *variable, found_t *found)
{
    char *text = found->text[variable->role];

    for (size_t i = 0; i < DP_ARRAY_LEN(variable->names) && variable->names[i] != NULL; i++) {
        const char *name = variable->names[i];
        const char *value = NULL;

        if (strncmp(name, "DP_", 3) == 0) {
            if (!read_own(config, name, text)) continue;
        } else {
            value = lookup(context, name);
            if (value == NULL || value[0] == '\0') continue;
            snprintf(text, TEXT_ROOM, "%s", value);
        }
        found->name[variable->role] = name;
        return;
    }
}

static void parse_number(found_t *found, enum role role, int max)
{
    int64_t value = -1;

    found->number[role] = -1;
    if (found->name[role] == NULL) return;
    if (dp_parse_integer(found->text[role], &value) != NULL || value < 0 || value > max) {
        dp_error_set(&found->error, DP_ERR_CONFIG, "%s='%.100s' of %s is not a number from 0 to %d",
                     found->name[role], found->text[role], found->family->name, max);
        return;
    }
    found->number[role] = (int)value;
}

/* Shells that Slurm starts inside an allocation are steps too, with ids from the end of the range:
 * interactive, batch, extern, pending. A program run there by hand is a world of one. */
static int is_ordinary_step(const char *step)
{
    int64_t id = -1;

    return dp_parse_integer(step, &id) == NULL && id >= 0 && id < 0xfffffff0;
}

static void check_numbers(found_t *found)
{
    const int *number = found->number;

    if (found->error.status != DP_OK || !found->is_complete) return;
    if (number[SIZE] < 1 || number[RANK] >= number[SIZE]) {
        dp_error_set(&found->error, DP_ERR_CONFIG, "%s=%d is not below %s=%d", found->name[RANK],
                     number[RANK], found->name[SIZE], number[SIZE]);
    } else if (number[LOCAL_SIZE] > number[SIZE]) {
        dp_error_set(&found->error, DP_ERR_CONFIG, "%s=%d is above %s=%d", found->name[LOCAL_SIZE],
                     number[LOCAL_SIZE], found->name[SIZE], number[SIZE]);
    } else if (number[LOCAL_SIZE] >= 0 && number[LOCAL_RANK] >= number[LOCAL_SIZE]) {
        dp_error_set(&found->error, DP_ERR_CONFIG, "%s=%d is not below %s=%d",
                     found->name[LOCAL_RANK], number[LOCAL_RANK], found->name[LOCAL_SIZE],
                     number[LOCAL_SIZE]);
    } else if (number[LOCAL_SIZE] == 0) {
        dp_error_set(&found->error, DP_ERR_CONFIG, "%s=0: not even this process",
                     found->name[LOCAL_SIZE]);
    }
}

static void read_family(const dp_config_t *config, dp_lookup_t lookup, void *context,
                        const family_t *family, found_t *found)
{
    memset(found, 0, sizeof(*found));
    found->family = family;
    for (size_t i = 0; i < family->count; i++) {
        const variable_t *variable = &family->variables[i];

        read_variable(config, lookup, context, variable, found);
        if (found->name[variable->role] != NULL && variable->flags & MARKER) found->is_present = 1;
    }
    if (family->kind == DP_STARTER_SLURM && !is_ordinary_step(found->text[STEP])) {
        found->is_present = 0;
    }
    for (int role = RANK; role < NUMBERS; role++) {
        parse_number(found, (enum role)role, role == PORT ? 65535 : RANKS_MAX);
    }
    found->is_complete = found->is_present;
    for (size_t i = 0; i < family->count; i++) {
        const variable_t *variable = &family->variables[i];

        if (found->name[variable->role] != NULL) continue;
        if (variable->flags & NEEDED) found->is_complete = 0;
        if (variable->flags & NEEDED_BY_MORE && found->number[SIZE] != 1) found->is_complete = 0;
    }
    check_numbers(found);
}

/* ---- Judging -------------------------------------------------------------------------------- */

/* "RANK=1, LOCAL_RANK=1": what is set of a family, or "WORLD_SIZE, MASTER_ADDR": what lacks. */
static void list_variables(const found_t *found, int is_set, char *text, size_t room)
{
    size_t bytes = 0;

    text[0] = '\0';
    for (size_t i = 0; i < found->family->count; i++) {
        const variable_t *variable = &found->family->variables[i];
        const char *name = found->name[variable->role];

        if ((name != NULL) != is_set || bytes + 80 > room) continue;
        if (!is_set && !(variable->flags & (NEEDED | NEEDED_BY_MORE))) continue;
        bytes += (size_t)snprintf(text + bytes, room - bytes, "%s%s", bytes > 0 ? ", " : "",
                                  is_set ? name : variable->names[0]);
        if (is_set && variable->role < NUMBERS) {
            bytes +=
                (size_t)snprintf(text + bytes, room - bytes, "=%.10s", found->text[variable->role]);
        }
    }
}

static dp_status_t refuse_half(const found_t *found, dp_error_t *error)
{
    char set[400];
    char missing[400];

    list_variables(found, 1, set, sizeof(set));
    list_variables(found, 0, missing, sizeof(missing));
    return dp_error_set(error, DP_ERR_CONFIG,
                        "half of %s: %s %s set, but not %s; %s, set what is missing, or unset "
                        "the rest for a world of one",
                        found->family->name, set, strstr(set, ", ") != NULL ? "are" : "is", missing,
                        found->family->start);
}

static void warn(dp_starter_t *starter, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void warn(dp_starter_t *starter, const char *format, ...)
{
    const size_t bytes = strlen(starter->warning);
    va_list arguments;

    va_start(arguments, format);
    if (bytes > 0) snprintf(starter->warning + bytes, sizeof(starter->warning) - bytes, "; ");
    vsnprintf(starter->warning + strlen(starter->warning),
              sizeof(starter->warning) - strlen(starter->warning), format, arguments);
    va_end(arguments);
}

/* Another launcher is there as well. One of size 1 says nothing about a world. Of a difference in
 * size all ranks know, so rank 0 speaks for them. */
static void compare(const found_t *used, const found_t *other, dp_starter_t *starter)
{
    char missing[400];
    const int is_size_equal = used->number[SIZE] == other->number[SIZE];

    if (!other->is_complete) {
        if (used->number[RANK] > 0) return;
        list_variables(other, 0, missing, sizeof(missing));
        warn(starter, "half of %s is set too, without %s: using %s", other->family->name, missing,
             used->family->name);
        return;
    }
    if (other->error.status != DP_OK || other->number[SIZE] == 1) return;
    if (is_size_equal && used->number[RANK] == other->number[RANK]) return;
    if (!is_size_equal && used->number[RANK] > 0) return;
    warn(starter, "%s says rank %d of %d (%s, %s), %s says rank %d of %d (%s, %s): using %s",
         used->family->name, used->number[RANK], used->number[SIZE], used->name[RANK],
         used->name[SIZE], other->family->name, other->number[RANK], other->number[SIZE],
         other->name[RANK], other->name[SIZE], used->family->name);
}

/* ---- Where rank 0 is ------------------------------------------------------------------------ */

/* Copies a host, without the brackets of an IPv6 address. */
static void copy_host(char host[TEXT_ROOM], const char *text, size_t bytes)
{
    const int has_brackets = bytes > 2 && text[0] == '[' && text[bytes - 1] == ']';

    snprintf(host, TEXT_ROOM, "%.*s", (int)(bytes - (has_brackets ? 2 : 0)),
             text + (has_brackets ? 1 : 0));
}

/* Splits "host:port" and "[IPv6]:port". */
static int split_address(const char *text, char host[TEXT_ROOM], int *port)
{
    const char *colon = strrchr(text, ':');
    const size_t bytes = colon == NULL ? 0 : (size_t)(colon - text);
    int64_t number = 0;

    if (bytes == 0 || bytes >= TEXT_ROOM) return 0;
    if (dp_parse_integer(colon + 1, &number) != NULL || number < 1 || number > 65535) return 0;
    /* Colons without brackets: nobody can tell where the port begins. */
    if (memchr(text, ':', bytes) != NULL && (text[0] != '[' || text[bytes - 1] != ']')) return 0;
    copy_host(host, text, bytes);
    *port = (int)number;
    return 1;
}

static int is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

static dp_status_t locate(const dp_config_t *config, const found_t *found, dp_starter_t *starter,
                          dp_error_t *error)
{
    if (found->family->kind == DP_STARTER_TORCHRUN && found->name[ADDRESS] != NULL) {
        copy_host(starter->host, found->text[ADDRESS], strlen(found->text[ADDRESS]));
        starter->port = found->number[PORT] >= 65535 ? 1024 : found->number[PORT] + 1;
    }
    if (config->rendezvous[0] != '\0') {
        if (!split_address(config->rendezvous, starter->host, &starter->port)) {
            return dp_error_set(error, DP_ERR_CONFIG,
                                "DP_RENDEZVOUS='%.100s' is not HOST:PORT (a name, an IPv4 address "
                                "or an IPv6 address in brackets; 1 to 65535)",
                                config->rendezvous);
        }
        starter->is_port_asked = 1;
    } else if (config->rendezvous_port > 0) {
        starter->port = config->rendezvous_port;
        starter->is_port_asked = 1;
    }
    starter->is_one_node = starter->local_size == starter->size || found->number[HOSTS] == 1 ||
                           (starter->local_size < 0 && is_loopback(starter->host));
    return DP_OK;
}

static void identify(const found_t *found, dp_starter_t *starter)
{
    char *identity = starter->identity;
    const size_t room = sizeof(starter->identity);
    const char *restart = found->name[RESTART] != NULL ? found->text[RESTART] : "0";

    switch (starter->kind) {
    case DP_STARTER_PLAIN:
        snprintf(identity, room, "plain-%s", found->text[ADDRESS]);
        break;
    case DP_STARTER_TORCHRUN:
        snprintf(identity, room, "torchrun-%.200s-%.10s-%.255s-%.5s",
                 found->name[JOB] != NULL ? found->text[JOB] : "none", restart,
                 found->text[ADDRESS], found->text[PORT]);
        break;
    case DP_STARTER_OPENMPI:
        snprintf(identity, room, "openmpi-%s", found->text[JOB]);
        break;
    case DP_STARTER_SLURM:
        snprintf(identity, room, "slurm-%.100s.%.20s-%.10s", found->text[JOB], found->text[STEP],
                 restart);
        break;
    case DP_STARTER_PMI: /* the key-value space is the job's own */
    case DP_STARTER_NONE:
    case DP_STARTER_DPRUN:
    case DP_STARTER_STORE:
        break;
    }
}

/* Kubeflow's trainer leaves these to whatever is to start the ranks of its pod. A process that
 * finds them alone was started in its place. */
static dp_status_t refuse_unstarted_node(dp_lookup_t lookup, void *context, dp_error_t *error)
{
    static const char *const names[] = {"PET_NNODES", "PET_NPROC_PER_NODE"};
    char values[DP_ARRAY_LEN(names)][TEXT_ROOM] = {"", ""};
    int is_one = 1;

    for (size_t i = 0; i < DP_ARRAY_LEN(names); i++) {
        const char *value = lookup(context, names[i]);

        if (value == NULL) return DP_OK;
        snprintf(values[i], sizeof(values[i]), "%s", value);
        is_one &= strcmp(values[i], "1") == 0;
    }
    if (is_one) return DP_OK;
    return dp_error_set(error, DP_ERR_CONFIG,
                        "%s=%.20s and %s=%.20s ask for several ranks, but this process was started "
                        "as none of them: start with torchrun or with dprun --node env, or unset "
                        "both for a world of one",
                        names[0], values[0], names[1], values[1]);
}

dp_status_t dp_starter_find(const dp_config_t *config, dp_lookup_t lookup, void *context,
                            dp_starter_t *starter, dp_error_t *error)
{
    found_t found[DP_ARRAY_LEN(families)];
    const found_t *used = NULL;

    memset(starter, 0, sizeof(*starter));
    for (size_t i = 0; i < DP_ARRAY_LEN(families); i++) {
        read_family(config, lookup, context, &families[i], &found[i]);
    }
    if (found[0].is_present) found[1].is_present = found[1].is_complete = 0; /* dprun's own */
    for (size_t i = 0; i < DP_ARRAY_LEN(families); i++) {
        /* Ours are set for us: half of them is never somebody else's. */
        if (i < 2 && found[i].is_present && !found[i].is_complete) {
            return refuse_half(&found[i], error);
        }
        if (found[i].is_complete && used == NULL) used = &found[i];
    }
    for (size_t i = 0; i < DP_ARRAY_LEN(families) && used == NULL; i++) {
        if (found[i].is_present) return refuse_half(&found[i], error);
    }
    starter->name = "nobody";
    starter->size = 1;
    starter->local_rank = starter->local_size = -1;
    if (used == NULL) return refuse_unstarted_node(lookup, context, error);
    if (used->error.status != DP_OK) {
        return dp_error_set(error, used->error.status, "%s", used->error.text);
    }
    starter->kind = used->family->kind;
    starter->name = used->family->name;
    starter->rank_name = used->name[RANK];
    starter->size_name = used->name[SIZE];
    starter->rank = used->number[RANK];
    starter->size = used->number[SIZE];
    starter->local_rank = used->number[LOCAL_RANK];
    starter->local_size = used->number[LOCAL_SIZE];
    starter->pmi_fd = used->number[FD];
    snprintf(starter->pmi_job, sizeof(starter->pmi_job), "%.127s", used->text[JOB]);
    for (size_t i = 0; i < DP_ARRAY_LEN(families); i++) {
        if (&found[i] != used && found[i].is_present) compare(used, &found[i], starter);
    }
    if (starter->kind == DP_STARTER_DPRUN || starter->size == 1) return DP_OK;
    identify(used, starter);
    return locate(config, used, starter, error);
}
