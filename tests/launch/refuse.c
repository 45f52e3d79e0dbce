/*
 * refuse.c - runs a program whose kernel lacks a system call: as one before it came, or a sandbox.
 *
 *     refuse ENOSYS|EPERM CALL PROGRAM [ARGUMENTS...]
 *     refuse --list
 *
 * A seccomp filter answers the call; the program's children have it, too. Used by old_kernel.sh.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#endif
#define WHOLE (-1) /* whatever its arguments are */

typedef struct call {
    const char *name;
    uint32_t number;
    int argument; /* which one must have the value */
    uint32_t value;
} call_t;

static const call_t calls[] = {
    {"pidfd_open", SYS_pidfd_open, WHOLE, 0},
    {"pidfd_send_signal", SYS_pidfd_send_signal, WHOLE, 0},
    {"memfd_create", SYS_memfd_create, WHOLE, 0},
    {"F_ADD_SEALS", SYS_fcntl, 1, F_ADD_SEALS},
    {"process_vm_readv", SYS_process_vm_readv, WHOLE, 0},
    {"process_vm_writev", SYS_process_vm_writev, WHOLE, 0},
    {"MADV_POPULATE_READ", SYS_madvise, 2, MADV_POPULATE_READ},
    {"MADV_POPULATE_WRITE", SYS_madvise, 2, MADV_POPULATE_WRITE},
    {"MADV_DONTDUMP", SYS_madvise, 2, MADV_DONTDUMP},
    {"getrandom", SYS_getrandom, WHOLE, 0},
    {"statx", SYS_statx, WHOLE, 0},
    {"clone3", SYS_clone3, WHOLE, 0},
    {"close_range", SYS_close_range, WHOLE, 0},
    {"faccessat2", SYS_faccessat2, WHOLE, 0},
    {"copy_file_range", SYS_copy_file_range, WHOLE, 0},
    {"renameat2", SYS_renameat2, WHOLE, 0},
    {"rseq", SYS_rseq, WHOLE, 0},
    {"membarrier", SYS_membarrier, WHOLE, 0},
    {"fallocate", SYS_fallocate, WHOLE, 0},
    {"mbind", SYS_mbind, WHOLE, 0},
    {"get_mempolicy", SYS_get_mempolicy, WHOLE, 0},
    {"sched_setaffinity", SYS_sched_setaffinity, WHOLE, 0},
    {"PR_SET_CHILD_SUBREAPER", SYS_prctl, 0, PR_SET_CHILD_SUBREAPER},
    {"PR_SET_PDEATHSIG", SYS_prctl, 0, PR_SET_PDEATHSIG},
    {"PR_SET_NAME", SYS_prctl, 0, PR_SET_NAME},
};

static const call_t *find_call(const char *name)
{
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(calls[i].name, name) == 0) return &calls[i];
    return NULL;
}

static int refuse(const call_t *call, int error)
{
    /* The low half of an argument, on little-endian machines. */
    const uint32_t at =
        (uint32_t)offsetof(struct seccomp_data, args) + 8 * (uint32_t)(call->argument & 7);
    struct sock_filter whole[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call->number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_filter some[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call->number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call->value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog program = {.len = call->argument == WHOLE
                                                  ? sizeof(whole) / sizeof(whole[0])
                                                  : sizeof(some) / sizeof(some[0]),
                                       .filter = call->argument == WHOLE ? whole : some};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

int main(int argc, char **argv)
{
    const call_t *call;

    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
            printf("%s\n", calls[i].name);
        return 0;
    }
    call = argc < 4 ? NULL : find_call(argv[2]);
    if (call == NULL) {
        fprintf(stderr, "usage: refuse ENOSYS|EPERM CALL PROGRAM [ARGUMENTS...]\n");
        return 2;
    }
    if (refuse(call, strcmp(argv[1], "EPERM") == 0 ? EPERM : ENOSYS) != 0) {
        fprintf(stderr, "refuse: no seccomp filter here: %s\n", strerror(errno));
        return 77;
    }
    execvp(argv[3], argv + 3);
    fprintf(stderr, "refuse: %s: %s\n", argv[3], strerror(errno));
    return 127;
}
