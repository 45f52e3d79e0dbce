/*
 * input_file.h - opens files that users name: settings, hosts, a recording; and reads the small
 * ones in which the kernel describes this process and machine.
 *
 * Called on any thread.
 */
#ifndef DP_BASE_INPUT_FILE_H
#define DP_BASE_INPUT_FILE_H

#include <stddef.h>
#include <stdio.h>

/* Differs between any two kernels that run: equal means one machine and one clock. */
#define DP_BOOT_ID_FILE "/proc/sys/kernel/random/boot_id"

/* Opens a regular file, or a pipe that has a writer, as bash's <(...) is one. Opening waits for
 * nobody. A device, where reading may never end, a socket and a folder are refused. NULL: *why, for
 * people. */
FILE *dp_input_file_open(const char *path, const char **why);

/* The first room - 1 bytes of a small file, terminated, also if there are none. 0: it cannot be
 * read or is empty. */
int dp_input_file_read(const char *path, char *text, size_t room);
/* The same up to the end of the first line. */
int dp_input_file_read_line(const char *path, char *text, size_t room);

/* The process's group of a controller in a file like /proc/self/cgroup: controller is "" for
 * version 2, "cpu" or "memory" for version 1. 0: it is in none. */
int dp_input_file_read_cgroup(const char *file, const char *controller, char *group, size_t room);

#endif
