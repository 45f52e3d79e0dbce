/*
 * canary.c - decides by memory that nobody wrote: what valgrind must notice, so that its silence
 * about the other programs means something.
 */
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    unsigned char *memory = malloc(16);
    int result;

    if (memory == NULL) return 1;
    result = memory[7] == 3;
    free(memory);
    puts(result ? "three" : "other"); /* depends on it */
    return 0;
}
