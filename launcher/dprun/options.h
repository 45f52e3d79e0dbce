/*
 * options.h - what a dprun command line asks for.
 *
 * Two tables make the flags: dprun's own, here, and the settings of runtime/base/config.h. Parsing
 * starts nothing and looks at nothing but its arguments, the environment's DP_ variables and the
 * --config file. Called by dprun.c and help.c, before anything is started.
 */
#ifndef DP_LAUNCHER_OPTIONS_H
#define DP_LAUNCHER_OPTIONS_H

#include "runtime/base/config.h"

#define DP_RANKS_MAX 1024
#define DP_DIRECTORY_MAX 1023 /* bytes of --wdir */

typedef enum dp_command_action {
    DP_ACTION_RUN,
    DP_ACTION_DRY_RUN,
    DP_ACTION_CHECK,
    DP_ACTION_STATION, /* serves another machine's dprun; nothing but it uses this */
    DP_ACTION_PROBE,   /* is a rank of --check; likewise */
    DP_ACTION_HELP,
    DP_ACTION_VERSION
} dp_command_action_t;

typedef enum dp_color { DP_COLOR_AUTO, DP_COLOR_ALWAYS, DP_COLOR_NEVER } dp_color_t; /* --color */

/* Where the ranks of this process' job stand in the whole job. All 0: they are the whole job. */
typedef struct dp_place {
    int first_rank;
    int size; /* ranks of the whole job; 0: those of this one */
    int node; /* its number */
} dp_place_t;

typedef struct dp_command {
    dp_command_action_t action;
    int size;     /* ranks; 0: not given */
    char **argv;  /* program and its arguments, borrowed from main's; NULL: none */
    int is_quiet; /* nothing of the ranks' output on our own */
    int has_timestamps;
    int has_prefix;
    dp_color_t color;
    int stdin_rank; /* -1: none */
    int binds_cores;
    int shares_gpu; /* several ranks on one GPU, each a host of its own to NCCL */
    int keeps_run_dir;
    const char *output_dir;  /* borrowed from argv; NULL: none */
    const char *report_file; /* likewise */
    const char *metrics;     /* likewise: where the ranks' figures are served */
    const char *config_file; /* likewise */
    uint64_t grace_ns;       /* from TERM to KILL */
    uint64_t timeout_ns;     /* of the whole job; 0: none */
    char **variables;        /* [variable_count] NAME=VALUE of -x, entries borrowed from argv */
    size_t variable_count;
    char **passed; /* [passed_count] NAME or pattern of -x, likewise; here they are inherited */
    size_t passed_count;
    /* Other machines; texts are borrowed from argv or the environment, NULL: not given. */
    const char *hosts;     /* -H */
    const char *hostfile;  /* --hostfile */
    const char *directory; /* --wdir */
    const char *node;      /* --node */
    const char *meet;      /* --meet */
    int port;              /* --port; 0: any */
    dp_place_t place;
    dp_config_t config; /* defaults, file, environment, flags */
} dp_command_t;

/* A flag of dprun's own. */
typedef struct dp_flag {
    size_t offset;     /* of its field of dp_command_t */
    int kind;          /* what it does with the field, in options.c */
    int number;        /* for the field, or its least value */
    const char *name;  /* "--output-dir" */
    const char *alias; /* "-o" or NULL */
    const char *value; /* "DIR", or NULL where it takes none */
    const char *help;  /* NULL: another spelling, not listed */
    const char *group; /* heading in --help */
} dp_flag_t;

size_t dp_flag_count(void);
const dp_flag_t *dp_flag(size_t index);

/* "--fusion-bytes" of the setting FUSION_BYTES. */
void dp_flag_of_setting(const dp_setting_t *setting, char *text, size_t room);

/* Reads the command line, then the --config file and the DP_ variables. Errors name the argument
 * and, for an unknown flag, the nearest one. */
dp_status_t dp_command_parse(int argc, char **argv, const dp_log_t *log, dp_command_t *command,
                             dp_error_t *error);
void dp_command_fini(dp_command_t *command);

#endif
