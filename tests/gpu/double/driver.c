/*
 * driver.c - a libcuda.so.1 that shows two GPUs, or what DP_TEST_GPUS says; for tests of what looks
 * for a driver. There is nothing behind it.
 */
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);

int cuInit(unsigned flags)
{
    return (int)flags;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuDeviceGetCount(int *count)
{
    const char *wanted = getenv("DP_TEST_GPUS");

    *count = wanted == NULL ? 2 : atoi(wanted);
    return 0;
}
