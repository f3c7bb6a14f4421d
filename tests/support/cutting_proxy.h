/* SPDX-License-Identifier: Apache-2.0
 * A proxy in front of Postgres that cuts the connection around a COMMIT. It listens on a unix
 * socket of its own and runs on a thread. */
#ifndef SUPPORT_CUTTING_PROXY_H
#define SUPPORT_CUTTING_PROXY_H

#include <stddef.h>

enum cut {
    CUT_NEVER,
    CUT_BEFORE,  /* the bytes that hold the COMMIT never arrive */
    CUT_AFTER,   /* they arrive, and the server has answered; the answer does not */
    CUT_AT_ONCE, /* they arrive; nobody waits for what becomes of them */
    CUT_LATE,    /* they arrive when the client has long seen its connection break */
    CUT_SYNC,    /* COMMIT is answered, then the server ends the connection, as a terminated backend
                  * does
                  */
};

struct cutting_proxy;

struct cutting_proxy *cutting_proxy_start(const char *server_socket);
void cutting_proxy_stop(struct cutting_proxy *p);
/* The folder of its socket, for host=… in an address. */
const char *cutting_proxy_folder(const struct cutting_proxy *p);
/* From now on: the next COMMIT is cut, connections after it pass. With `refuse` they are refused
 * instead. */
void cutting_proxy_arm(struct cutting_proxy *p, enum cut cut, int refuse);

#endif
