/*
 * versions.c - what the driver, the CUDA runtime, cuBLASLt and NCCL say of their version: these are
 * the libraries that libraries.py finds in its tests, and the last three of them in a rehearsal.
 * The functions that a rehearsal's programs call are in the doubles that they are linked to.
 */
#include <stddef.h>

#if !defined(MAJOR) /* of CUDA; tests of libraries.py make others */
#define MAJOR 13
#endif
#if !defined(VERSION) /* of NCCL */
#define VERSION 22809
#endif

int cuDriverGetVersion(int *version);
int cudaRuntimeGetVersion(int *version);
size_t cublasLtGetVersion(void);
int ncclGetVersion(int *version);

#if defined(DOUBLE_DRIVER)
int cuDriverGetVersion(int *version)
{
    *version = MAJOR * 1000;
    return 0;
}
#elif defined(DOUBLE_CUDART)
int cudaRuntimeGetVersion(int *version)
{
    *version = MAJOR * 1000;
    return 0;
}
#elif defined(DOUBLE_CUBLASLT)
size_t cublasLtGetVersion(void)
{
    return MAJOR * 10000;
}
#else
int ncclGetVersion(int *version)
{
    *version = VERSION;
    return 0;
}
#endif
