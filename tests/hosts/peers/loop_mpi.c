/*
 * loop_mpi.c - tests/faults/victim.c's training loop for MPI: averages one tensor again and again.
 *
 *     mpirun ... loop_mpi STEPS FOLDER
 *
 * Each rank leaves FOLDER/part.RANK behind once it has averaged five times. peers.sh compiles it.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define COUNT 100000

int main(int argc, char **argv)
{
    static float values[COUNT];
    const struct timespec work = {0, 3000000};
    const long steps = argc > 1 ? strtol(argv[1], NULL, 10) : 1;
    char path[512];
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (long step = 1; step <= steps; step++) {
        nanosleep(&work, NULL);
        MPI_Allreduce(MPI_IN_PLACE, values, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (step == 5 && argc > 2) {
            FILE *file;

            snprintf(path, sizeof(path), "%s/part.%d", argv[2], rank);
            file = fopen(path, "w");
            if (file != NULL) fclose(file);
        }
    }
    MPI_Finalize();
    return 0;
}
