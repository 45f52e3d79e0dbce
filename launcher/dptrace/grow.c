/*
 * grow.c - arrays that double, for all of dptrace. Apart from its users, so that an analyser sees
 * only the contract.
 */
#include <stdlib.h>
#include <string.h>

#include "launcher/dptrace/timeline.h"

/* array points to the array's pointer, whatever its type: memcpy() reads and writes it without a
 * cast that would break the rule on aliases. */
int dp_grow(void *array, size_t count, size_t *room, size_t element_bytes)
{
    void *old, *grown;
    size_t wanted = *room == 0 ? 64 : *room * 2;

    if (count < *room) return 1;
    if (wanted > SIZE_MAX / element_bytes) return 0;
    memcpy(&old, array, sizeof(old));
    grown = realloc(old, wanted * element_bytes);
    if (grown == NULL) return 0;
    memcpy(array, &grown, sizeof(grown));
    *room = wanted;
    return 1;
}
