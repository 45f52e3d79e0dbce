/*
 * moments.h - memory of which a moment can be kept, and gone back to.
 */
#ifndef DP_TESTS_MOMENTS_H
#define DP_TESTS_MOMENTS_H

#include <stddef.h>

typedef struct moment moment_t;

/* All that malloc() and the like have given since the program began, as it is now. old: a moment
 * that is not needed any more and whose memory may be used; or NULL. Ends the program when there is
 * none. Give it back with moment_forget(). */
moment_t *moment_keep(moment_t *old);
/* Makes all of it what it was then: pointers into it are good again, and those got since are not.
 */
void moment_return(const moment_t *moment);
void moment_forget(moment_t *moment);

/* Memory that stays what it is, zeroed; NULL: none. Freed with lasting_free(). */
void *lasting_allocate(size_t count, size_t bytes);
void lasting_free(void *memory);

#endif
