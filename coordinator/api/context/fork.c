/*
 * fork.c - what a context registers with runtime/base/forked.h, and the error text of a child.
 *
 * Called by init.c on the program's thread that creates or destroys the context, and by query.c
 * for the text.
 */
#include "coordinator/api/context/fork.h"

const char *dp_fork_text(void)
{
    return "this process is a child that a rank made with fork(): it has none of the rank's "
           "threads "
           "and connections; let the rank make the call, or exec() a program of its own";
}

void dp_context_fork_begin(dp_context_t *context)
{
    context->fork.generation = dp_fork_generation();
    dp_fork_enter();
}

/* The transport's descriptor is an epoll, as UCX's is, which watches the connections: the child
 * closes those. */
void dp_context_fork_watch(dp_context_t *context)
{
    dp_fork_watch(&context->fork.watch, context->transport->ops->fd(context->transport));
}

void dp_context_fork_end(dp_context_t *context)
{
    dp_fork_forget(&context->fork.watch);
    dp_fork_leave();
}

dp_status_t dp_fork_check_init(dp_error_t *error)
{
    if (!dp_fork_is_child()) return DP_OK;
    return dp_error_set(error, DP_ERR_INVALID, "%s", dp_fork_text());
}
