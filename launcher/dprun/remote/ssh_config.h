/*
 * ssh_config.h - which of the options that dprun would give ssh the user has chosen already.
 *
 * An option of a command line wins over ssh's configuration. So dprun leaves out those that the
 * configuration has, for whichever host: "ssh -G" would tell it for one host, and takes 10 ms.
 */
#ifndef DP_LAUNCHER_SSH_CONFIG_H
#define DP_LAUNCHER_SSH_CONFIG_H

#include <stddef.h>

typedef struct dp_ssh_config {
    int has_timeout; /* ConnectTimeout */
    int has_alive;   /* ServerAliveInterval or ServerAliveCountMax */
} dp_ssh_config_t;

/* ssh: its words as --ssh has them, which may name another file (-F) or an option (-o). Reads
 * otherwise ~/.ssh/config and /etc/ssh/ssh_config, and what they include. */
void dp_ssh_config_look(const char *ssh, dp_ssh_config_t *config);

/* Looks through one text of a configuration. folder: where relative names of Include start; "":
 * nothing is included. Adds to config. */
void dp_ssh_config_scan(const char *text, const char *folder, dp_ssh_config_t *config);

#endif
