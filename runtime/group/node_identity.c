/*
 * node_identity.c - which node this process is on, by what the kernel says of itself.
 *
 * Called once by dp_init(). The boot id differs between any two running kernels. Ranks of one
 * kernel pass each other descriptors over UNIX sockets in the abstract namespace, which belongs to
 * a network namespace, and accept only their own user, whose number means something only within a
 * user namespace. Pids, System V memory and file systems may differ: no rank needs them to be
 * common.
 */
#include "runtime/group/node_identity.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/input_file.h"

/* 0: not known, which is equal everywhere. */
static unsigned long long namespace_of(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0 ? (unsigned long long)about.st_ino : 0;
}

void dp_node_identity_read(dp_node_identity_t *identity)
{
    char boot_id[65] = "";

    /* A system that hides it: the name is all there is. */
    if (!dp_input_file_read_line(DP_BOOT_ID_FILE, boot_id, sizeof(boot_id)) &&
        gethostname(boot_id, sizeof(boot_id) - 1) != 0)
        snprintf(boot_id, sizeof(boot_id), "localhost");
    snprintf(identity->kernel, sizeof(identity->kernel), "%s", boot_id);
    snprintf(identity->network, sizeof(identity->network), "%s net %llu", boot_id,
             namespace_of("/proc/self/ns/net"));
    snprintf(identity->node, sizeof(identity->node), "%s net %llu user %llu uid %u", boot_id,
             namespace_of("/proc/self/ns/net"), namespace_of("/proc/self/ns/user"),
             (unsigned)geteuid());
}
