/* SPDX-License-Identifier: Apache-2.0
 * Parameters of a Postgres statement in binary form: scalars, and arrays that grow by one element a
 * row. */
#ifndef STORE_POSTGRES_PARAMS_H
#define STORE_POSTGRES_PARAMS_H

#include <libpq-fe.h>

#include "store/db.h"

struct postgres_params {
    const char *types; /* of the open call */
    int n;
    struct buf data[DB_PARAMS_MAX];
    int32_t elements[DB_PARAMS_MAX];
    bool nulls[DB_PARAMS_MAX]; /* an array holds NULLs; a scalar is NULL */
    /* what libpq is given, filled by params_finish */
    Oid oids[DB_PARAMS_MAX];
    const char *values[DB_PARAMS_MAX];
    int lengths[DB_PARAMS_MAX], formats[DB_PARAMS_MAX];
    bool failed; /* out of memory */
};

void params_begin(struct postgres_params *p, const char *types);
void params_row(struct postgres_params *p, const struct db_value *values, unsigned n, bool first);
void params_finish(struct postgres_params *p);
void params_types(struct postgres_params *p, const char *types); /* only oids and n: to prepare */
void params_free(struct postgres_params *p);

int64_t postgres_int(const char *bytes, int length); /* big-endian, 1 to 8 bytes */

#endif
