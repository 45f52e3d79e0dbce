/*
 * owned.c - objects that a program makes on a context and may leave to dp_finalize().
 *
 * Called on the program's threads, by the functions that make and destroy such objects, and by
 * dp_finalize(). It must not know what they are.
 */
#include "coordinator/api/context/owned.h"

void dp_context_own(dp_context_t *context, dp_owned_t *object)
{
    pthread_mutex_lock(&context->lock);
    object->next = context->owned;
    context->owned = object;
    pthread_mutex_unlock(&context->lock);
}

void dp_context_disown(dp_context_t *context, dp_owned_t *object)
{
    dp_owned_t **place;

    pthread_mutex_lock(&context->lock);
    for (place = &context->owned; *place != NULL && *place != object;)
        place = &(*place)->next;
    if (*place != NULL) *place = object->next;
    pthread_mutex_unlock(&context->lock);
}

void dp_context_free_owned(dp_context_t *context)
{
    while (context->owned != NULL) {
        dp_owned_t *object = context->owned;

        context->owned = object->next;
        object->free(object);
    }
}
