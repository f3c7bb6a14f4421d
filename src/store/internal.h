/* SPDX-License-Identifier: Apache-2.0
 * What the files of the store share. Nobody outside src/store includes it. */
#ifndef STORE_INTERNAL_H
#define STORE_INTERNAL_H

#include "store/db.h"
#include "store/list.h"
#include "store/payload.h"
#include "store/store.h"

struct sqlite_home;
struct postgres_link;
struct postgres_server;
struct past_submissions;
struct load;
struct apply;

/* Where the two databases are used in different ways, not only with different words. */
struct store_kind {
    bool sqlite;
    struct db *(*connect)(struct store *s, bool writer, struct err *e);
    /* Nobody else decides about the sessions that a load names until its transaction is over. */
    void (*lock_sessions)(struct load *ld);
    /* Executions that go may be the last of theirs. */
    void (*drop_sessions)(struct apply *ap);
    /* A row that was just loaded: what the database does not hold, or the set may not believe. */
    void (*settle_execution)(struct load *ld, struct execution *row);
    /* Counts and keys of the executions that a load names: calls, and after the flush what they
     * brought. */
    bool (*load_submissions)(struct load *ld, struct err *e);
    void (*put_submissions)(struct load *ld);
    void (*apply_submissions)(struct apply *ap);
    void (*apply_leases)(struct apply *ap);
    bool (*expired_leases)(struct store_writer *w, struct working_set *ws, size_t limit,
                           struct arena *a, struct uuid **out, size_t *n, struct err *e);
    bool (*tidy)(struct store_writer *w, struct working_set *ws, bool *more, struct err *e);
};
extern const struct store_kind SQLITE_KIND, POSTGRES_KIND;

struct store {
    const struct store_kind *kind;
    struct sqlite_home *home;       /* SQLite: owned */
    struct postgres_server *server; /* Postgres: owned */
    struct postgres_link *link;     /* Postgres: owned */
};

enum tidying { TIDY_SUBMISSIONS, TIDY_BUCKETS, TIDY_UNLINKED };

struct store_writer {
    struct store *store; /* borrowed */
    struct db *db;       /* owned */
    bool broken; /* an error that only a new handle may follow; until store_writer_recover nothing
                    is tried */
    struct past_submissions
        *past; /* SQLite: owned; what the counts were when they were last read (submission.h) */
    int64_t set_since; /* SQLite, lease clock: when the set that it loads was last empty */
    /* where store_tidy goes on */
    int64_t tidy_after;      /* SQLite: in the counted submissions */
    int64_t tidy_busy_us;    /* SQLite: what this pass over them has taken so far */
    int64_t tidy_not_before; /* SQLite, monotonic: the next one */
    enum tidying tidying;
    unsigned unlinked_slices; /* in a row */
    struct buf buckets_after; /* owned */
};

struct store_reader {
    struct store *store; /* borrowed */
    struct db *db;       /* owned */
};

/* ---- loading ---- */

/* Rows are gathered while the calls run (on Postgres all in one round trip, in the order of the
 * calls) and put into the set when everything is here. Gathered rows live in the group's arena. */
struct loaded_execution {
    struct uuid id;
    bool found, has_dispatch;
    struct execution row;
    struct dispatch dispatch;
    int64_t last_seq; /* by the log */
};
struct loaded_step {
    struct uuid execution_id;
    struct step row;
};
struct loaded_agent {
    struct agent row;
    bool found;
};
struct loaded_approval {
    struct uuid execution_id;
    struct approval row;
};
struct loaded_bucket {
    struct bucket row;
    bool found;
};
struct loaded_parent {
    struct parent_ref ref;
    struct uuid id; /* nil: none */
};
struct loaded_resources { /* of one execution: resource_rows[first] and those behind it */
    size_t first, n;
};
struct load {
    struct store_writer *w;
    struct db *db;
    struct working_set *ws;
    struct payload_reader payloads;
    struct map execution_map; /* uuid → struct loaded_execution */
    struct map agent_map;     /* id → struct loaded_agent */
    struct map session_map;   /* name → struct session */
    struct map parent_map;    /* session, agent id → struct loaded_parent */
    LIST(struct loaded_execution *) executions;
    LIST(struct loaded_step *) steps;
    LIST(struct loaded_agent *) agents;
    LIST(struct loaded_approval *) approvals;
    LIST(struct session *) sessions;
    LIST(struct loaded_parent *) parents;
    LIST(struct resource) resource_rows;
    struct loaded_resources *resources;    /* by index into need.resources */
    struct loaded_resources *inheritances; /* by index into need.inheritances */
    struct ending *endings;                /* by index into need.endings */
    struct fork_pin *pins;                 /* by index into need.forks; key 0: none */
    struct keepers *keepers;               /* by index into need.keepers */
    size_t sessions_locked;
    int64_t *session_tokens;       /* by index into need.session_tokens */
    struct loaded_bucket *buckets; /* by index into need.buckets */
    struct uuid *request_key_ids;  /* by index into need.request_keys; nil: none */
    struct uuid *dispatch_executions;
    int64_t *tally_counts; /* Postgres: by index into need.tallies */
    struct submission_key *tally_keys;
    bool *tally_has_key;
};

void agent_load_held(struct load *ld); /* with locks */
void agent_load_read(struct load *ld); /* the others */
void agent_put(struct load *ld);
void session_load(struct load *ld); /* with locks; and the parents in them */
void session_load_tokens(struct load *ld);
void session_put(struct load *ld);
void execution_load(struct load *ld); /* with their live dispatches and the ends of their logs */
void execution_put(struct load *ld);
void request_key_load(struct load *ld);
void request_key_put(struct load *ld);
void dispatch_load(struct load *ld); /* live ones of ld->executions, and need.dispatches */
void dispatch_put(struct load *ld);
void event_load_last(struct load *ld);
void step_load(struct load *ld);
void step_put(struct load *ld);
void approval_load(struct load *ld);
void approval_put(struct load *ld);
void resource_load(struct load *ld); /* and inheritances */
void resource_put(struct load *ld);
void ending_load(struct load *ld);
void ending_put(struct load *ld);
void fork_load(struct load *ld); /* with locks */
void fork_put(struct load *ld);
void keepers_load(struct load *ld); /* locks their sessions */
void keepers_put(struct load *ld);
void bucket_load(struct load *ld);
void bucket_put(struct load *ld);

/* ---- applying ---- */
struct apply {
    struct db *db;
    struct working_set *ws;
    struct changes *changes;
    struct payload_writer payloads;
};
void agent_apply(struct apply *ap);
void execution_apply(struct apply *ap);
void dispatch_apply(struct apply *ap);
void step_apply(struct apply *ap);
void approval_apply(struct apply *ap);
void resource_apply(struct apply *ap); /* and checkpoints */
void fork_apply(struct apply *ap);     /* pins, and copied steps */
void unlink_apply(struct apply *ap);   /* executions that go */
void bucket_apply(struct apply *ap);
void event_apply(struct apply *ap);

/* ---- shared pieces ---- */
#define LIVE_EXECUTION_STATUSES "('pending', 'running', 'blocked')"
#define LIVE_STEP_STATUSES "('proposed', 'awaiting_approval', 'allowed', 'executing')"
#define TERMINAL_STEP_STATUSES "('succeeded', 'failed', 'denied', 'cancelled')"

/* A payload of a step `s`: the args, result or error of a copied one stand in another row. */
#define STEP_PAYLOAD(column)                                                                       \
    "CASE WHEN s.payload_key IS NULL THEN s." column " ELSE (SELECT h." column                     \
    " FROM steps h WHERE h.key = s.payload_key) END"

struct str owner_state_name(enum owner_state s);
/* A column copied into the arena; absent stays absent. A failed allocation makes the flush fail. */
struct str db_get_copy(struct db *db, int column, struct arena *a);

/* One slice of the buckets: those that have long been full go. */
MUST_USE bool bucket_tidy(struct store_writer *w, bool *more, struct err *e);
/* One slice of what executions that are gone have left behind. */
MUST_USE bool unlinked_tidy(struct store_writer *w, bool *more, struct err *e);
/* A number of rows that a slice of housekeeping goes through in a few milliseconds. */
enum { TIDY_ROWS = 500 };

/* Applies the migrations that are missing. */
MUST_USE bool store_migrate(struct db *db, bool sqlite, struct err *e);

#endif
