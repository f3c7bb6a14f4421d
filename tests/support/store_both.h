/* SPDX-License-Identifier: Apache-2.0
 * One suite, two databases: ON_BOTH(test) lists a test twice, with `*state` pointing at an enum
 * fixture_kind. */
#ifndef SUPPORT_STORE_BOTH_H
#define SUPPORT_STORE_BOTH_H

#include "support/store_fixture.h"

static enum fixture_kind both_sqlite = FIXTURE_SQLITE, both_postgres = FIXTURE_POSTGRES;

#define ON_SQLITE(test)                                                                            \
    {                                                                                              \
#test "_sqlite", test, NULL, NULL, &both_sqlite                                            \
    }
#define ON_POSTGRES(test)                                                                          \
    {                                                                                              \
#test "_postgres", test, NULL, NULL, &both_postgres                                        \
    }
#define ON_BOTH(test) ON_SQLITE(test), ON_POSTGRES(test)

#endif
