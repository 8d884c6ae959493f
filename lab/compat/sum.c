// SPDX-License-Identifier: Apache-2.0 OR MIT
// Two processes exchange large arrays and add them up.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, count = 8 << 20;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int *own = malloc(count * sizeof *own), *sum = malloc(count * sizeof *sum);
    for (int i = 0; i < count; i++) own[i] = i % 1000 + rank;
    MPI_Allreduce(own, sum, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    long total = 0;
    for (int i = 0; i < count; i++) total += sum[i];
    if (rank == 0) printf("%ld\n", total);
    MPI_Finalize();
    return 0;
}
