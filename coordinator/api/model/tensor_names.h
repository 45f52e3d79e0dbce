/*
 * tensor_names.h - the names of the tensors that one object stands for: gradients, and groups of
 * shards.
 *
 * Called by the functions that make these objects, on the program's thread. It must not know what
 * the names are of.
 */
#ifndef DP_COORDINATOR_TENSOR_NAMES_H
#define DP_COORDINATOR_TENSOR_NAMES_H

#include <stddef.h>

/* The object's prefix and a name in one text; returned: free(). NULL: no memory. */
char *dp_tensor_name_join(const char *prefix, const char *name);

/* One of names[count] that occurs twice; NULL: there is none. Sorts them. */
const char *dp_tensor_names_find_repeated(const char **names, size_t count);

#endif
