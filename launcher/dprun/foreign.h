/*
 * foreign.h - whether a rank's program is another library's: one with an MPI that found no
 * launcher.
 *
 * Called by the agent, which is the parent of the ranks, on its only thread. It reads /proc and
 * must not know about dprun or what follows.
 */
#ifndef DP_LAUNCHER_FOREIGN_H
#define DP_LAUNCHER_FOREIGN_H

#include <stddef.h>
#include <sys/types.h>

/* The name of an MPI library that the process has mapped, where no variable of its environment
 * tells that library of a launcher. 1: found. */
int dp_foreign_look(pid_t pid, char *library, size_t room);

#endif
