/*
 * fuzz_nodes.c - any bytes as what dprun learns about machines: -H, a hostfile, Slurm's lists, the
 * variables of Kubeflow, Volcano and SageMaker, --ssh, ssh's last words, cgroups.
 *
 * The first byte picks what the rest is. What is accepted has names that ssh takes for no option
 * and that no terminal acts on, and numbers that add up; what is refused has a text.
 */
#include "tests/fuzz/fuzz.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/dprun/remote/hosts.h"
#include "launcher/dprun/remote/nodes_join.h"
#include "launcher/dprun/remote/shell.h"
#include "runtime/group/core_share.h"
#include "tests/fuzz/scratch.h"

#define VARIABLES_MAX 16
#define WORDS_MAX 2048

extern char **environ;

enum { HOSTS, HOSTFILE, SLURM, VARIABLES, FLAGS, SSH, SSH_WORDS, CGROUP, KINDS };

static void check_text(const dp_error_t *error)
{
    if (error->text[0] == '\0' || memchr(error->text, '\0', sizeof(error->text)) == NULL) abort();
}

static void check_hosts(dp_hosts_t *hosts, dp_status_t status, const dp_error_t *error, int wanted)
{
    dp_error_t why = {DP_OK, ""};
    int size = wanted;
    int ranks = 0;

    if (status != DP_OK) {
        check_text(error);
        return;
    }
    if (hosts->count < 1) abort();
    for (int i = 0; i < hosts->count; i++) {
        const char *name = hosts->list[i].name;

        if (name[0] == '\0' || name[0] == '-' || hosts->list[i].slots < 1) abort();
        for (; *name != '\0'; name++)
            if (!isgraph((unsigned char)*name)) abort();
    }
    if (dp_hosts_place(hosts, &size, &why) == DP_OK) {
        for (int i = 0; i < hosts->count; i++) {
            if (hosts->list[i].ranks < 1 || hosts->list[i].first_rank != ranks) abort();
            ranks += hosts->list[i].ranks;
        }
        if (ranks != size || (wanted != 0 && size != wanted)) abort();
    } else {
        check_text(&why);
    }
    dp_hosts_fini(hosts);
}

/* The text up to the first NUL or newline, and what is behind it. */
static char *split(char *text)
{
    const size_t bytes = strcspn(text, "\n");

    if (text[bytes] == '\0') return text + bytes;
    text[bytes] = '\0';
    return text + bytes + 1;
}

/* A file in memory: far quicker than one on a disk. Its path; the next call overwrites it. */
static const char *write_memory(const void *data, size_t bytes)
{
    static char path[32];
    static int fd = -1;

    if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, bytes, 0) != (ssize_t)bytes) abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return path;
}

static void plan(const char *node, const char *meet)
{
    static const char secret[] = "0123456789abcdef0123456789abcdef";
    static dp_command_t command;
    static dp_nodes_t nodes;
    static char file[256]; /* it must be this user's alone, which one in memory is not */
    dp_error_t error = {DP_OK, ""};

    memset(&nodes, 0, sizeof(nodes));
    memset(&command, 0, sizeof(command));
    dp_config_defaults(&command.config);
    if (file[0] == '\0') {
        const mode_t mask = umask(077);

        snprintf(file, sizeof(file), "%s", scratch_write("secret", secret, sizeof(secret)));
        umask(mask);
    }
    snprintf(command.config.secret_file, sizeof(command.config.secret_file), "%s", file);
    command.node = node;
    command.meet = meet;
    if (dp_nodes_plan_join(&nodes, &command, &error) != DP_OK) {
        check_text(&error);
    } else if (nodes.node < 0 || nodes.node >= nodes.hosts.count || nodes.port == 0 ||
               nodes.meet[0] == '\0' || command.size < nodes.hosts.count ||
               command.size % nodes.hosts.count != 0) {
        abort();
    }
    dp_hosts_fini(&nodes.hosts);
}

static void plan_by_variables(char *text)
{
    char *variables[VARIABLES_MAX + 1];
    char **own = environ;
    int count = 0;

    while (*text != '\0' && count < VARIABLES_MAX) {
        variables[count++] = text;
        text = split(text);
    }
    variables[count] = NULL;
    environ = variables;
    plan("env", NULL);
    environ = own;
}

static void explain(int status, const char *words)
{
    char text[900];

    memset(text, 'x', sizeof(text));
    (void)dp_shell_explain("ssh", status % 2 ? "b" : NULL, "/opt/dp/bin/dprun", status, words, text,
                           sizeof(text));
    if (memchr(text, '\0', sizeof(text)) == NULL || text[0] == '\0') abort();
    memset(text, 'x', sizeof(text));
    (void)dp_shell_explain("srun", NULL, "dprun", status, words, text, 100);
    if (memchr(text, '\0', 100) == NULL || text[100] != 'x') abort();
}

static void build_ssh(const char *ssh)
{
    static dp_shell_command_t command;
    dp_error_t error = {DP_OK, ""};

    memset(&command, 'x', sizeof(command));
    if (dp_shell_command_ssh(&command, ssh, "b", "/opt/dp/bin/dprun", 0, &error) != DP_OK) {
        check_text(&error);
        return;
    }
    for (int i = 0; command.argv[i] != NULL; i++) {
        if (i >= DP_SHELL_ARGUMENTS - 1 || command.argv[i] < command.text ||
            command.argv[i] >= command.text + sizeof(command.text))
            abort();
    }
}

/* The first line is that of /proc/self/cgroup, the rest a file with a quota. */
static void read_quotas(char *text)
{
    const char *rest = split(text);
    dp_core_share_t share;

    memset(&share, 0, sizeof(share));
    (void)scratch_write("cpu.max", rest, strlen(rest));
    (void)scratch_write("cpu.cfs_quota_us", rest, strlen(rest));
    dp_core_quotas_read(&share, write_memory(text, strlen(text)), scratch_folder());
    if (share.quota_count < 0 || share.quota_count > DP_CORE_QUOTAS_MAX) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    const unsigned kind = (unsigned)fuzz_number(&input, 1);
    const unsigned number = (unsigned)fuzz_number(&input, 1);
    dp_error_t error = {DP_OK, ""};
    dp_hosts_t hosts;
    dp_status_t status;
    char *text = calloc(1, input.bytes + 1);
    char *rest;

    if (text == NULL) return 0;
    if (input.bytes > 0) memcpy(text, input.data, input.bytes);
    switch (kind % KINDS) {
    case HOSTS:
        status = dp_hosts_parse(&hosts, text, &error);
        check_hosts(&hosts, status, &error, (int)number);
        break;
    case HOSTFILE:
        status = dp_hosts_read(&hosts, write_memory(input.data, input.bytes), &error);
        check_hosts(&hosts, status, &error, (int)number);
        break;
    case SLURM:
        rest = split(text);
        status = dp_hosts_from_slurm(&hosts, text, rest, &error);
        check_hosts(&hosts, status, &error, (int)number);
        break;
    case VARIABLES:
        plan_by_variables(text);
        break;
    case FLAGS:
        rest = split(text);
        plan(text, rest);
        break;
    case SSH:
        build_ssh(text);
        break;
    case SSH_WORDS: /* as dp_shell_words() keeps them: no control characters */
        text[input.bytes < WORDS_MAX ? input.bytes : WORDS_MAX] = '\0';
        for (char *at = text; *at != '\0'; at++)
            if (iscntrl((unsigned char)*at) && *at != '\n') *at = '?';
        explain((int)(number << 8), text);
        explain((int)number, text);
        break;
    default:
        read_quotas(text);
        break;
    }
    free(text);
    return 0;
}

/* ---- Seeds ---------------------------------------------------------------------------------- */

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const struct {
        uint8_t kind, number;
        const char *text;
    } seeds[] = {
        {HOSTS, 4, "a:2,user@b:2,c,[fe80::1]:3"},
        {HOSTFILE, 0, "# ours\na slots=2 max-slots=4\nb:2\n[::1]:1\n"},
        {SLURM, 5, "a,n[1-3,7],m[08-10]x\n2(x3),1"},
        {SLURM, 0, "n[1-2]\n4294967297(x99999999)"},
        {SLURM, 5, "n[-1/3,7]\n1"}, /* once counted on from the largest number */
        {VARIABLES, 0, "PET_NNODES=2:4\nPET_NODE_RANK=1\nPET_MASTER_ADDR=a\nPET_MASTER_PORT=29500"},
        {VARIABLES, 0, "VC_TASK_INDEX=1\nVC_WORKER_HOSTS=a,b"},
        {VARIABLES, 0, "SM_HOSTS=[\"algo-1\", \"algo-2\"]\nSM_CURRENT_HOST=algo-2\nSM_NUM_GPUS=4"},
        {FLAGS, 0, "1/2\n[fe80::1%eth0]:29500"},
        {SSH, 0, "ssh -p 22 \t -o ConnectTimeout=3"},
        {SSH_WORDS, 255, "Warning: x\nssh: connect to host b port 22: Connection refused\n"},
        {SSH_WORDS, 1, "dprun-station unreached: cannot reach dprun\n"},
        {CGROUP, 0, "0::/a/b\n150000 100000\n"},
        {CGROUP, 0, "4:cpu,cpuacct:/a/../b\n-1\n"},
    };
    size_t bytes;

    if (which >= sizeof(seeds) / sizeof(seeds[0])) return 0;
    bytes = strlen(seeds[which].text);
    if (bytes + 2 > room) return 0;
    data[0] = seeds[which].kind;
    data[1] = seeds[which].number;
    memcpy(data + 2, seeds[which].text, bytes);
    return bytes + 2;
}
