/*
 * transport.c - what all transports share: a destroy that accepts NULL, called by the
 * owner of a transport: the context, or the transport above it.
 */
#include "runtime/transport/transport.h"

void dp_transport_destroy(dp_transport_t *transport)
{
    if (transport != NULL) transport->ops->destroy(transport);
}
