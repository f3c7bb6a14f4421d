/* SPDX-License-Identifier: Apache-2.0
 * Opening a store by its address; writers, readers and the small questions. */
#include "store/store.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/fault.h"
#include "store/postgres_link.h"
#include "store/postgres_server.h"
#include "store/sqlite_home.h"
#include "store/submission.h"

/* ---- the store ---- */

static bool migrate_new(struct store *s, struct err *e)
{
    /* On Postgres any connection may write, and a writer's needs the tables. */
    struct db *db = s->kind->connect(s, s->kind->sqlite, e);
    bool ok = db != NULL && store_migrate(db, s->kind->sqlite, e);

    db_close(db);
    return ok;
}

static bool open_sqlite(struct store *s, const char *path, struct err *e)
{
    s->kind = &SQLITE_KIND;
    s->home = sqlite_home_open(path, e);
    return s->home != NULL && migrate_new(s, e) && sqlite_home_start(s->home, e);
}

static bool open_postgres(struct store *s, const struct store_options *opt, struct err *e)
{
    s->kind = &POSTGRES_KIND;
    s->server = postgres_server_new(opt->url, opt->max_connections);
    if (!migrate_new(s, e))
        return false;
    s->link = postgres_link_open(s->server, opt->leader_key, e);
    return s->link != NULL;
}

struct store *store_open(const struct store_options *opt, struct err *e)
{
    struct store *s = xzalloc(sizeof(*s));
    struct str url = str_of(opt->url), sqlite = STR("sqlite://");
    bool ok = false;

    if (str_eq(url, STR("memory:")))
        ok = open_sqlite(s, NULL, e);
    else if (str_starts(url, sqlite) && url.n > sqlite.n)
        ok = open_sqlite(s, opt->url + sqlite.n, e);
    else if (str_starts(url, STR("postgres://")) || str_starts(url, STR("postgresql://")))
        ok = open_postgres(s, opt, e);
    else
        err_set(e, ERR_VALIDATION,
                "the database address must begin with sqlite:// (sqlite:///absolute/path, "
                "sqlite://relative/path) or "
                "postgres://");
    FAULT("store.open.after");
    if (ok)
        return s;
    store_close(s);
    return NULL;
}

void store_close(struct store *s)
{
    if (s == NULL)
        return;
    sqlite_home_close(s->home);
    postgres_link_close(s->link);
    postgres_server_free(s->server);
    free(s);
}

bool store_is_sqlite(const struct store *s)
{
    return s->kind->sqlite;
}

bool store_was_alone(const struct store *s)
{
    return s->link == NULL || postgres_link_was_alone(s->link);
}

void store_notify(struct store *s, const struct store_note *notes, size_t n)
{
    if (s->link != NULL)
        postgres_link_notify(s->link, notes, n);
}

bool store_leads(const struct store *s)
{
    return s->link == NULL || postgres_link_leads(s->link);
}

bool store_listen(struct store *s, int64_t timeout_us, struct arena *a, struct store_note *out)
{
    return s->link != NULL && postgres_link_listen(s->link, timeout_us, a, out);
}

/* ---- writers ---- */

struct store_writer *store_writer_open(struct store *s, struct err *e)
{
    struct store_writer *w = xzalloc(sizeof(*w));

    w->store = s;
    w->set_since = clock_mono_us();
    w->db = s->kind->connect(s, true, e);
    if (w->db == NULL) {
        free(w);
        return NULL;
    }
    return w;
}

void store_writer_close(struct store_writer *w)
{
    if (w == NULL)
        return;
    store_abandon(w);
    db_close(w->db);
    past_submissions_free(w->past);
    buf_free(&w->buckets_after);
    free(w);
}

/* It must change something: SQLite does not write a page whose content stays the same. */
static const struct db_sql SQL_RECOVERED = {
    .name = "recovered",
    .sqlite = "UPDATE recoveries SET count = count + 1",
    .types = "",
    .exact = true,
};

bool store_writer_recover(struct store_writer *w, struct err *e)
{
    bool unknown;

    store_abandon(w);
    w->broken = true;
    if (w->store->kind->sqlite &&
        (!sqlite_home_look(w->store->home, e) || !sqlite_home_has_room(w->store->home, e)))
        return false;
    if (!db_reopen(w->db, e))
        return false;
    db_begin(w->db);
    db_call(w->db, &SQL_RECOVERED, NULL, NULL);
    db_one(w->db);
    w->broken = !db_commit(w->db, &unknown, e);
    return !w->broken;
}

bool store_expired_leases(struct store_writer *w, struct working_set *ws, size_t limit,
                          struct arena *a, struct uuid **out, size_t *n, struct err *e)
{
    *n = 0;
    return w->store->kind->expired_leases(w, ws, limit, a, out, n, e);
}

bool store_tidy(struct store_writer *w, struct working_set *ws, bool *more, struct err *e)
{
    return w->store->kind->tidy(w, ws, more, e);
}

/* ---- readers ---- */

struct store_reader *store_reader_open(struct store *s, struct err *e)
{
    struct store_reader *r = xzalloc(sizeof(*r));

    r->store = s;
    r->db = s->kind->connect(s, false, e);
    if (r->db == NULL) {
        free(r);
        return NULL;
    }
    return r;
}

void store_reader_close(struct store_reader *r)
{
    if (r == NULL)
        return;
    db_close(r->db);
    free(r);
}

static void on_count(void *ctx, struct db *db, size_t row)
{
    int64_t *count = ctx;

    (void)row;
    *count = db_get_int(db, 0);
}

static const struct db_sql SQL_PING = {
    .name = "ping",
    .sqlite = "SELECT count(*) FROM schema_migrations",
    .types = "",
};

bool store_ping(struct store_reader *r, struct err *e)
{
    int64_t n = 0;

    db_call(r->db, &SQL_PING, on_count, &n);
    db_one(r->db);
    return db_flush(r->db, e);
}

static const struct db_sql SQL_QUEUE_DEPTH = {
    .name = "queue_depth",
    .sqlite = "SELECT count(*) FROM dispatches WHERE status = 'queued'",
    .types = "",
};

bool store_queue_depth(struct store_reader *r, int64_t *out, struct err *e)
{
    *out = 0;
    db_call(r->db, &SQL_QUEUE_DEPTH, on_count, out);
    db_one(r->db);
    return db_flush(r->db, e);
}
