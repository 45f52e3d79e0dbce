/*
 * transport.c - what all transports share.
 */
#include "runtime/transport/transport.h"

void dp_transport_destroy(dp_transport_t *transport)
{
    if (transport != NULL) transport->ops->destroy(transport);
}
