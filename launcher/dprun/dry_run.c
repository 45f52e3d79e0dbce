/*
 * dry_run.c - see dry_run.h. Called by dprun.c, on dprun's only thread.
 */
#include "launcher/dprun/dry_run.h"

#include <string.h>

#include "launcher/dprun/remote/shell.h"

/* An argument, quoted as a shell would read it back. */
static void print_quoted(FILE *out, const char *word)
{
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+/.,:@%";

    if (word[0] != '\0' && strspn(word, plain) == strlen(word)) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            fputs("'\\''", out);
        } else {
            fputc(*word, out);
        }
    }
    fputc('\'', out);
}

static void print_words(FILE *out, const char *title, char *const *words)
{
    fprintf(out, "%-8s", title);
    for (; *words != NULL; words++) {
        fputc(' ', out);
        print_quoted(out, *words);
    }
    fputc('\n', out);
}

static void print_size(FILE *out, int size, int nodes)
{
    fprintf(out, "job      %d rank%s on %d node%s, nothing started\n", size, size == 1 ? "" : "s",
            nodes, nodes == 1 ? "" : "s");
}

static void print_command(FILE *out, const dp_command_t *command)
{
    print_words(out, "command", command->argv);
    if (command->stdin_rank < 0) {
        fprintf(out, "stdin    nobody\n");
    } else {
        fprintf(out, "stdin    rank %d\n", command->stdin_rank);
    }
    if (command->output_dir != NULL)
        fprintf(out, "output   also to %s/rank.R.out and .err, here\n", command->output_dir);
}

/* Its value is another one for each rank. */
static int is_of_rank(const char *name)
{
    return strcmp(name, "DP_RANK") == 0 || strcmp(name, "DP_LOCAL_RANK") == 0 ||
           strcmp(name, "RANK") == 0 || strcmp(name, "LOCAL_RANK") == 0 ||
           strcmp(name, DP_JOB_HOST_OF_RANK) == 0;
}

void dp_dry_run_job(const dp_job_t *job, FILE *out)
{
    const dp_command_t *command = job->command;

    print_size(out, job->size, 1);
    fprintf(out, "node     %s: %d of %d cores allowed", job->host, job->cores.allowed,
            job->cores.in_machine);
    if (job->cores.quota > 0) fprintf(out, " (CPU quota %.4g)", job->cores.quota);
    fprintf(out, ", %d thread%s per rank%s\n", job->threads, job->threads == 1 ? "" : "s",
            job->size > job->cores.allowed ? "; more ranks than cores" : "");
    if (job->directory[0] != '\0') fprintf(out, "folder   %s\n", job->directory);
    fprintf(out, "program  %s\n", job->program);
    print_command(out, command);
    fprintf(out, "env      inherited, and for every rank:\n");
    for (size_t i = 0; i < job->given_count; i++) {
        if (is_of_rank(job->given[i])) continue;
        fprintf(out, "         %s=", job->given[i]);
        print_quoted(out, dp_env_get(&job->env, job->given[i]));
        fputc('\n', out);
    }
    fprintf(out, "         DP_RUN_DIR=(a directory made at the start)\n");
    for (int rank = 0; rank < job->size; rank++) {
        char text[256];
        cpu_set_t set;

        dp_cores_of_rank(&job->cores, rank, job->size, &set);
        dp_cores_format(&set, text, sizeof(text));
        fprintf(out, "rank %-3d node %s, local %d, cores %s, DP_RANK=%d DP_LOCAL_RANK=%d%s\n", rank,
                job->host, rank, command->binds_cores ? text : "any (--bind none)", rank, rank,
                dp_job_has_own_hosts(job) ? ", its own " DP_JOB_HOST_OF_RANK : "");
    }
}

static void print_start(const dp_nodes_t *nodes, const dp_command_t *command, FILE *out)
{
    dp_shell_command_t shell;
    dp_status_t status;

    if (nodes->way == DP_NODES_JOIN) {
        fprintf(out, "start    by others, a dprun --node on each; they meet at %s:%u\n",
                nodes->meet, nodes->port);
        return;
    }
    if (nodes->way == DP_NODES_SRUN) {
        status =
            dp_shell_command_srun(&shell, nodes->names, nodes->hosts.count, nodes->program, NULL);
    } else {
        status = dp_shell_command_ssh(&shell, command->config.ssh, nodes->hosts.list[0].name,
                                      nodes->program, 0, NULL);
    }
    if (status == DP_OK) print_words(out, "start", shell.argv);
}

void dp_dry_run_nodes(const dp_nodes_t *nodes, const dp_command_t *command, FILE *out)
{
    print_size(out, command->size, nodes->hosts.count);
    print_start(nodes, command, out);
    fprintf(out, "folder   %s, on every node\n", nodes->directory);
    print_command(out, command);
    fprintf(out, "env      that of each node, and for every rank:\n");
    for (size_t i = 0; i < nodes->variable_count; i++)
        fprintf(out, "         %s\n", nodes->variables[i]);
    for (int i = 0; i < nodes->hosts.count; i++) {
        const dp_host_t *host = &nodes->hosts.list[i];

        for (int local = 0; local < host->ranks; local++) {
            fprintf(out, "rank %-3d node %s, local %d\n", host->first_rank + local, host->name,
                    local);
        }
    }
}
