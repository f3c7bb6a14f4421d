/* SPDX-License-Identifier: Apache-2.0
 * A store with one writer, one reader and a working set, on a database of its own: SQLite in a
 * temporary folder, or a new database of a Postgres cluster (postgres_cluster.h). */
#ifndef SUPPORT_STORE_FIXTURE_H
#define SUPPORT_STORE_FIXTURE_H

#include "kernel/working_set.h"
#include "store/store.h"

/* Text of users may hold any byte. */
#define ODD STR("a\0b\x01\xff\xfe ' \" \\ \xe2\x82\xac")

enum fixture_kind { FIXTURE_SQLITE, FIXTURE_MEMORY, FIXTURE_POSTGRES };

struct fixture {
    enum fixture_kind kind;
    char folder[64]; /* SQLite: holds test.db */
    char url[256];
    struct store *store;
    struct store_writer *w;
    struct store_reader *r;
    struct kernel_settings settings;
    struct uuid_gen ids;
    struct prng random;
    struct working_set ws;
    struct arena arena; /* of what a test reads */
};

void fixture_open(struct fixture *f, enum fixture_kind kind);
void fixture_close(struct fixture *f);
void fixture_reopen(struct fixture *f); /* as a kernel that was stopped and started again */
/* Another executor on the same store: a writer and a set of its own. Postgres alone has several. */
void fixture_second_open(struct fixture *f, struct fixture *second);
void fixture_second_close(struct fixture *second);
/* One statement by another way than the store's; the first column of the first row (static, "" when
 * none). No transaction may be open on SQLite. */
const char *fixture_sql(struct fixture *f, const char *sql);
/* Postgres: entries and rows that kernels have read of these tables (quoted, with commas between),
 * counted once their connections have ended: it reopens. */
int64_t fixture_rows_read(struct fixture *f, const char *tables);
/* The same of the pages of a table and its indexes: also those that a scan only steps over. */
int64_t fixture_pages_read(struct fixture *f, const char *table);
void assert_str(struct str got, struct str want); /* absent is not empty */

/* ---- shorthand for what kernel/ does ---- */
struct uuid fixture_uuid(struct fixture *f);
struct hash fixture_hash(uint64_t seed);
struct call_key fixture_call(uint64_t seed);
void fixture_agent(struct fixture *f, const char *id); /* registers and commits */
void fixture_load(struct fixture *f);                  /* fails the test on an error */
void fixture_commit(struct fixture *f);                /* likewise; ends the group */
/* New, and waits; `session` may be absent. */
struct execution *fixture_pending(struct fixture *f, const char *agent_id, struct str session);
struct execution *
fixture_execution(struct fixture *f,
                  const char *agent_id);        /* new, running, with a queued dispatch */
struct uuid fixture_claimed(struct fixture *f); /* one of agent "a", claimed; committed */
/* Loads an execution; NULL when there is none. */
struct execution *fixture_get(struct fixture *f, const struct uuid *id);
/* Claimed and acked: an attempt works under a lease. */
void fixture_claim(struct fixture *f, struct execution *exec);
struct step *fixture_step(struct fixture *f, struct execution *exec, const struct hash *id,
                          struct str args);
/* A pending approval of a step that waits for it; not loaded before. */
struct approval *fixture_approval(struct fixture *f, struct execution *exec,
                                  const struct hash *step_id, int64_t timeout_at);
void fixture_settle(struct fixture *f, struct step *step, struct str result);
void fixture_event(struct fixture *f, struct execution *exec, const char *line);
void fixture_count(struct fixture *f, struct execution *exec, uint64_t call, const char *key,
                   const struct hash *step_id);

#endif
