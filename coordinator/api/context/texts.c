/*
 * texts.c - error texts, which stay with the context until dp_finalize().
 *
 * Called by the other files of coordinator/api, on any thread, without the context's lock. A
 * program may hold a text for as long as it has the context: texts are only ever added, equal ones
 * are one, and when there are too many the last one repeats.
 */
#include "coordinator/api/context/texts.h"

#include "coordinator/api/context/fork.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *dp_context_text(dp_context_t *context, const char *text)
{
    const char *kept = "no memory for the text of an error";
    char *copy = NULL;

    pthread_mutex_lock(&context->lock);
    for (size_t i = context->texts.count; i > 0 && copy == NULL; i--)
        if (strcmp(context->texts.kept[i - 1], text) == 0) copy = context->texts.kept[i - 1];
    if (copy == NULL && context->texts.count < DP_TEXT_MAX_KEPT) {
        copy = strdup(text);
        if (copy != NULL) context->texts.kept[context->texts.count++] = copy;
    } else if (copy == NULL) {
        kept = "too many different errors; this one was not kept, earlier ones are";
    }
    if (copy != NULL) kept = copy;
    /* Once the world has ended, dp_error_text() keeps saying why it did. */
    if (context->fatal == DP_OK) __atomic_store_n(&context->texts.last, kept, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&context->lock);
    return kept;
}

dp_status_t dp_context_error(dp_context_t *context, dp_status_t status, const char *format, ...)
{
    char text[DP_ERROR_TEXT_MAX];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    dp_text_mask(text);
    dp_context_text(context, text);
    return status;
}

int dp_context_has_ended(dp_context_t *context)
{
    return dp_async_error(context) != DP_OK;
}

dp_status_t dp_async_error(const dp_context_t *context)
{
    dp_context_t *owner = (dp_context_t *)(uintptr_t)context;
    dp_status_t fatal;

    if (context == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    pthread_mutex_lock(&owner->lock);
    fatal = owner->fatal;
    pthread_mutex_unlock(&owner->lock);
    return fatal;
}
