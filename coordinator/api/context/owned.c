/*
 * owned.c - objects that a program makes on a context and may leave to dp_finalize().
 *
 * Called on the program's threads, by the functions that make and destroy such objects, and by
 * dp_finalize(). It must not know what they are.
 *
 * A program may destroy an object behind dp_finalize(), which has freed it. Nothing can be read
 * through such a pointer, so it is looked for among the objects of the contexts that there are.
 */
#include "coordinator/api/context/owned.h"

#include "runtime/base/forked.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dp_context_t *owners; /* contexts that have owned something; guarded by lock */

void dp_context_own(dp_context_t *context, dp_owned_t *object)
{
    pthread_mutex_lock(&lock);
    if (!context->is_owner) {
        context->is_owner = 1;
        context->next_owner = owners;
        owners = context;
    }
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(&context->lock);
    object->next = context->owned;
    context->owned = object;
    pthread_mutex_unlock(&context->lock);
}

static int take_from(dp_context_t *context, const dp_owned_t *object)
{
    dp_owned_t **place;
    int found;

    pthread_mutex_lock(&context->lock);
    for (place = &context->owned; *place != NULL && *place != object;)
        place = &(*place)->next;
    found = *place != NULL;
    if (found) *place = object->next;
    pthread_mutex_unlock(&context->lock);
    return found;
}

int dp_context_disown(const dp_owned_t *object)
{
    int found = 0;

    if (dp_fork_is_child()) return 0; /* another thread may have held the lock */
    pthread_mutex_lock(&lock);
    for (dp_context_t *context = owners; context != NULL && !found; context = context->next_owner)
        found = take_from(context, object);
    pthread_mutex_unlock(&lock);
    return found;
}

void dp_context_free_owned(dp_context_t *context)
{
    dp_context_t **place;

    pthread_mutex_lock(&lock);
    for (place = &owners; *place != NULL && *place != context;)
        place = &(*place)->next_owner;
    if (*place != NULL) *place = context->next_owner;
    pthread_mutex_unlock(&lock);
    while (context->owned != NULL) {
        dp_owned_t *object = context->owned;

        context->owned = object->next;
        object->free(object);
    }
}
