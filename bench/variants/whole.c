/* SPDX-License-Identifier: Apache-2.0
 * In place of src/api/chunking.c: every payload is stored whole. What chunks cost and save is
 * measured against a kernel that knows none. */
#include "api/chunking.h"

void chunking_cut(struct request *rq, struct str payload)
{
    (void)rq, (void)payload;
}

void chunking_stored(struct request *rq)
{
    (void)rq;
}
