/*
 * transport.c - what all transports share: a destroy that accepts NULL.
 */
#include "runtime/transport/transport.h"

void dp_transport_destroy(dp_transport_t *transport)
{
    if (transport != NULL) transport->ops->destroy(transport);
}
