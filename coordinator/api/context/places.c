/*
 * places.c - finds a rank's place among the group's ranks, ordered by rank of the world, and the
 * rank at a place; places.h says why the two differ.
 */
#include "coordinator/api/context/places.h"

int dp_group_place(const dp_group_t *group, int rank)
{
    int low = 0, high = group->size - 1;

    if (rank < 0 || rank >= group->size) return -1;
    if (group->ascending == NULL) return rank;
    while (low < high) {
        const int middle = low + (high - low) / 2;

        if (group->ascending[middle] < group->members[rank]) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int dp_group_rank_at(const dp_group_t *group, int place)
{
    int rank = 0;

    if (place < 0 || place >= group->size) return -1;
    if (group->ascending == NULL) return place;
    while (group->members[rank] != group->ascending[place])
        rank++;
    return rank;
}
