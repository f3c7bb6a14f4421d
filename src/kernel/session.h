/* SPDX-License-Identifier: Apache-2.0
 * Sessions: their executions run one at a time, in the order of their ids, whatever their agent
 * (docs/protocol.md, "Sessions"). Who holds one is decided under its lock. */
#ifndef KERNEL_SESSION_H
#define KERNEL_SESSION_H

#include "kernel/verdict.h"

/* A follow-up of an end: the oldest that waits starts, if nobody holds the session. May come twice,
 * and find its work done. */
void session_admit_names(struct working_set *ws, struct str session);
MUST_USE
enum verdict session_admit(struct working_set *ws, struct str session, struct err *e);

#endif
