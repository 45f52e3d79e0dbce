/*
 * shell.h - the local processes that bring up stations: an ssh for each node, one srun for all, or
 * dprun itself for the machine it runs on.
 *
 * The ticket goes through the process's standard input, which stays open for the job's life: its
 * end tells a station that dprun is gone. The output of the process is kept for error texts.
 */
#ifndef DP_LAUNCHER_SHELL_H
#define DP_LAUNCHER_SHELL_H

#include <event2/event.h>
#include <signal.h>

#include "launcher/dprun/remote/protocol.h"

typedef struct dp_shell dp_shell_t;

/* Signals that may be sent to every process of a job. */
#define DP_SHELL_SHIELDED                                                                          \
    {                                                                                              \
        SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2                                         \
    }

typedef struct dp_shell_start {
    char *const *argv; /* copied by exec */
    const dp_remote_ticket_t *ticket;
    sigset_t signals;    /* mask of the process */
    int is_shielded;     /* it ignores DP_SHELL_SHIELDED: a node needs its ssh until the end */
    int dies_with_dprun; /* 0 for srun: a signal to it kills the ranks at once (but see
                            dp_shell_end_with_dprun()) */
    void (*ended)(void *context, dp_shell_t *shell); /* it has ended; once */
    void *context;
} dp_shell_start_t;

dp_status_t dp_shell_create(struct event_base *base, const dp_shell_start_t *start,
                            dp_shell_t **out, dp_error_t *error);

/* Closes its standard input. A process that is still there is left to end by itself if it is to
 * outlive dprun, else ended with its process group: by SIGTERM, and a second later by SIGKILL. NULL
 * is fine. */
void dp_shell_destroy(dp_shell_t *shell);

/* dp_shell_destroy() ends it although it was to outlive dprun: nothing came of it. */
void dp_shell_end_with_dprun(dp_shell_t *shell);

int dp_shell_has_ended(const dp_shell_t *shell);
int dp_shell_status(const dp_shell_t *shell); /* as from wait() */

/* The latest of what it wrote on standard output and error, without control characters. */
const char *dp_shell_words(const dp_shell_t *shell);

#define DP_SHELL_WORDS_MAX 2048

/* ---- Command lines (pure) ------------------------------------------------------------------- */

#define DP_SHELL_ARGUMENTS 48

typedef struct dp_shell_command {
    char *argv[DP_SHELL_ARGUMENTS]; /* into text, NULL-terminated */
    char text[32768];               /* srun's may name 1,000 nodes */
} dp_shell_command_t;

/* ssh: "ssh" or what --ssh says, split at blanks; dprun's own options follow if it is OpenSSH's,
 * which takes the first of two that contradict each other. is_plain leaves out the choice of a key
 * exchange. */
dp_status_t dp_shell_command_ssh(dp_shell_command_t *command, const char *ssh, const char *host,
                                 const char *program, int is_plain, dp_error_t *error);
/* srun: on `nodes` nodes of the allocation, those of names ("a,b") unless it is NULL. */
dp_status_t dp_shell_command_srun(dp_shell_command_t *command, const char *names, int nodes,
                                  const char *program, dp_error_t *error);
dp_status_t dp_shell_command_here(dp_shell_command_t *command, const char *program,
                                  dp_error_t *error);

/* Why a station did not come up, for a user: from the exit status and words of its shell. */
typedef enum dp_shell_cause {
    DP_SHELL_OTHER,
    DP_SHELL_TRY_AGAIN, /* it may go better in a moment */
    DP_SHELL_TRY_PLAIN  /* this ssh does not know the key exchange */
} dp_shell_cause_t;
/* shell: "ssh", "srun". host: NULL where one shell serves all nodes. */
dp_shell_cause_t dp_shell_explain(const char *shell, const char *host, const char *program,
                                  int status, const char *words, char *text, size_t room);

#endif
