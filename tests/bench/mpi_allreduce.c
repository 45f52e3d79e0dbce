/*
 * mpi_allreduce.c - the peer's side of compare.sh: MPI_Allreduce in place, fp32 sum, one size.
 *
 *     mpicc -O2 mpi_allreduce.c -o mpi_allreduce && mpirun -n 2 ./mpi_allreduce BYTES ITERATIONS
 *
 * A barrier before each iteration; the time is that of the slowest rank; prints the median, us.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int rank, size, iterations = argc > 2 ? atoi(argv[2]) : 20;
    size_t count = (argc > 1 ? strtoull(argv[1], NULL, 10) : 4) / sizeof(float);
    double *times = calloc((size_t)iterations, sizeof(double));
    float *values = malloc(count * sizeof(float));

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (times == NULL || values == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t i = 0; i < count; i++)
        values[i] = 0.0f;
    for (int i = -3; i < iterations; i++) {
        double begin;

        MPI_Barrier(MPI_COMM_WORLD);
        begin = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0) times[i] = (MPI_Wtime() - begin) * 1e6;
    }
    MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, (size_t)iterations, sizeof(double), ascending);
    if (rank == 0) printf("%.1f\n", times[iterations / 2]);
    MPI_Finalize();
    return 0;
}
