/*
 * foreign.c - an MPI library in a process' maps; see foreign.h.
 *
 * A program that ends soon is gone with its maps, so the agent looks several times while it runs.
 */
#include "launcher/dprun/foreign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/common.h"

/* Open MPI; MPICH and its kin. Behind the name come a version or the end. */
static const char *const libraries[] = {"libmpi.so", "libmpich.so", "libmvapich.so"};

/* The variables by which mpirun, mpiexec and srun tell such a library its rank. */
static const char *const launcher_variables[] = {"PMIX_", "PMI_", "OMPI_COMM_WORLD_",
                                                 "MPI_LOCALRANKID="};

static FILE *open_of(pid_t pid, const char *name)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    return fopen(path, "re");
}

static int has_launcher(pid_t pid)
{
    FILE *file = open_of(pid, "environ");
    char *entry = NULL;
    size_t room = 0;
    int found = 0;

    if (file == NULL) return 1; /* not ours to read: nothing is said of it */
    while (!found && getdelim(&entry, &room, '\0', file) > 0) {
        for (size_t i = 0; i < DP_ARRAY_LEN(launcher_variables); i++) {
            if (strncmp(entry, launcher_variables[i], strlen(launcher_variables[i])) == 0)
                found = 1;
        }
    }
    free(entry);
    fclose(file);
    return found;
}

int dp_foreign_look(pid_t pid, char *library, size_t room)
{
    FILE *file = open_of(pid, "maps");
    char *line = NULL;
    size_t line_room = 0;
    int found = 0;

    if (file == NULL) return 0;
    while (!found && getline(&line, &line_room, file) > 0) {
        const char *name = strrchr(line, '/');

        for (size_t i = 0; name != NULL && i < DP_ARRAY_LEN(libraries); i++) {
            if (strncmp(name + 1, libraries[i], strlen(libraries[i])) != 0) continue;
            snprintf(library, room, "%.*s", (int)strcspn(name + 1, " \n"), name + 1);
            found = 1;
        }
    }
    free(line);
    fclose(file);
    return found && !has_launcher(pid);
}
