/* SPDX-License-Identifier: Apache-2.0
 * Which addresses a webhook may be sent to. Decided on the address itself at connect time, whatever
 * name led there. */
#ifndef DISPATCH_ADDRESS_H
#define DISPATCH_ADDRESS_H

#include "base/str.h"

#include <sys/socket.h>

/* Link-local and cloud metadata addresses never; loopback and private ranges only with
 * private_ranges. */
bool address_allowed(const struct sockaddr *sa, bool private_ranges);

#endif
