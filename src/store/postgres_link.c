/* SPDX-License-Identifier: Apache-2.0
 * Two connections: one that listens, and holds the advisory lock by which kernels see each other;
 * one that notifies, on a thread of its own, so that no executor waits for it. Hints may be lost
 * with either: a slow poll stands behind them. While no other kernel lives nothing is sent; a
 * newcomer says hello. */
#include "store/postgres_link.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/postgres_conn.h"
#include "store/postgres_params.h"

enum { PENDING_MAX = 4096, NOTE_TEXT_MAX = 7500 /* a NOTIFY carries 7999 bytes */ };
static const char DEFAULT_LEADER_KEY[] = "rebuno_scheduler_leader";
static const int64_t RETRY_US = US_PER_S;
static const int64_t LEAD_AGAIN_US = US_PER_S;
static const int64_t LOOK_AGAIN_US = 2 * US_PER_S; /* for other kernels */
static const char HELLO[] = "h";

struct postgres_link {
    struct postgres_server *server; /* borrowed */
    char *leader_key;               /* owned */
    bool alone;
    atomic_bool leads; /* this kernel does the background work; written by the listener's thread */
    /* the listener's thread */
    PGconn *listener; /* NULL while it is down */
    int64_t retry_at, lead_at;
    /* shared, under the lock */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct map pending; /* payloads to be sent, each once */
    struct buf order;   /* the same in the order they came, each with a NUL behind it */
    int64_t look_at;    /* when to look for other kernels again */
    bool stop, started;
    int notifier_pid, listener_pid; /* our own backends; 0: none */
    pthread_t thread;
};

/* ---- the lock ---- */

#define LOCK_KEY "7234091251883702"

static bool query_bool(PGconn *c, const char *sql, bool *out, struct err *e)
{
    PGresult *r = PQexec(c, sql);
    bool ok = PQresultStatus(r) == PGRES_TUPLES_OK;

    if (ok)
        *out = PQgetvalue(r, 0, 0)[0] == 't';
    else
        (void)postgres_error(c, r, "link", e);
    PQclear(r);
    return ok;
}

/* Exclusive first: who gets that is alone. Then shared, which every living kernel holds. */
static bool announce(PGconn *c, bool *alone, struct err *e)
{
    if (!query_bool(c, "SELECT pg_try_advisory_lock(" LOCK_KEY ")", alone, e))
        return false;
    if (!postgres_run(c, "SELECT pg_advisory_lock_shared(" LOCK_KEY ")", e))
        return false;
    return !*alone || postgres_run(c, "SELECT pg_advisory_unlock(" LOCK_KEY ")", e);
}

static bool listener_connect(struct postgres_link *link, bool *alone, struct err *e)
{
    bool ok = false;

    link->listener = postgres_connect(link->server, e);
    if (link->listener == NULL)
        return false;
    if (announce(link->listener, alone, e) &&
        postgres_run(link->listener, "LISTEN rebuno; NOTIFY rebuno, 'h'", e))
        ok = true;
    pthread_mutex_lock(&link->lock);
    link->listener_pid = ok ? PQbackendPID(link->listener) : 0;
    pthread_mutex_unlock(&link->lock);
    if (ok)
        return true;
    postgres_disconnect(link->server, link->listener);
    link->listener = NULL;
    return false;
}

/* ---- sending ---- */

struct notifier { /* the thread's own */
    struct postgres_link *link;
    PGconn *c;
    int64_t retry_at;
    bool others; /* another kernel lived when it was last looked */
    struct postgres_params params;
};

static bool connected(struct notifier *n)
{
    struct err e;

    if (postgres_alive(n->c))
        return true;
    if (clock_mono_us() < n->retry_at)
        return false;
    postgres_disconnect(n->link->server, n->c);
    n->c = postgres_connect(n->link->server, &e);
    n->retry_at = clock_mono_us() + RETRY_US;
    pthread_mutex_lock(&n->link->lock);
    n->link->notifier_pid = n->c == NULL ? 0 : PQbackendPID(n->c);
    n->link->look_at = 0;
    pthread_mutex_unlock(&n->link->lock);
    return n->c != NULL;
}

/* Every living kernel holds the lock, this one on its listener. */
static bool has_others(struct notifier *n)
{
    struct buf sql = {0};
    int64_t now = clock_mono_us();
    struct err e;
    bool look;

    pthread_mutex_lock(&n->link->lock);
    look = now >= n->link->look_at;
    if (look)
        n->link->look_at = now + LOOK_AGAIN_US;
    buf_printf(&sql,
               "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode "
               "= 'ShareLock'"
               " AND (classid::bigint << 32 | objid::bigint) = " LOCK_KEY " AND pid <> %d"
               " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
               n->link->listener_pid);
    pthread_mutex_unlock(&n->link->lock);
    buf_add_byte(&sql, '\0');
    if (look && !query_bool(n->c, buf_str(&sql).p, &n->others, &e))
        n->others = true;
    buf_free(&sql);
    return n->others;
}

static void send_notes(struct notifier *n, struct str notes)
{
    struct postgres_params *ps = &n->params;
    bool first = true;

    params_begin(ps, "T");
    for (size_t at = 0; at < notes.n; first = false) {
        struct str payload = str_of(notes.p + at);

        params_row(ps, &(struct db_value){.type = DB_TEXT, .s = payload}, 1, first);
        at += payload.n + 1;
    }
    params_finish(ps);
    if (!first && !ps->failed)
        PQclear(PQexecParams(n->c, "SELECT pg_notify('rebuno', x) FROM unnest($1) x", ps->n,
                             ps->oids, ps->values, ps->lengths, ps->formats, 0));
}

static void *notify_thread(void *arg)
{
    struct postgres_link *link = arg;
    struct notifier n = {.link = link};

    pthread_mutex_lock(&link->lock);
    while (!link->stop) {
        struct map batch = link->pending;
        struct buf order = link->order;

        if (batch.count == 0) {
            pthread_cond_wait(&link->cond, &link->lock);
            continue;
        }
        link->pending = (struct map){0};
        link->order = (struct buf){0};
        pthread_mutex_unlock(&link->lock);
        if (connected(&n) && has_others(&n))
            send_notes(&n, buf_str(&order));
        map_free(&batch);
        buf_free(&order);
        pthread_mutex_lock(&link->lock);
    }
    pthread_mutex_unlock(&link->lock);
    postgres_disconnect(link->server, n.c);
    params_free(&n.params);
    return NULL;
}

/* The kind, the id in hex, the text. */
static void write_payload(const struct store_note *note, struct buf *out)
{
    buf_clear(out);
    buf_add_byte(out, note->kind);
    buf_add_hex(out, note->id.b, sizeof(note->id.b));
    if (note->text.n <= NOTE_TEXT_MAX)
        buf_add(out, note->text);
}

void postgres_link_notify(struct postgres_link *link, const struct store_note *notes, size_t n)
{
    struct buf payload = {0};

    pthread_mutex_lock(&link->lock);
    for (size_t i = 0; i < n && link->pending.count < PENDING_MAX; i++) {
        write_payload(&notes[i], &payload);
        if (memchr(payload.p, '\0', payload.n) != NULL || !str_is_utf8(buf_str(&payload)))
            continue; /* a delta that Postgres cannot carry; they may be lost */
        if (map_put(&link->pending, buf_str(&payload), link) != NULL)
            continue;
        buf_add(&link->order, buf_str(&payload));
        buf_add_byte(&link->order, '\0');
    }
    pthread_cond_signal(&link->cond);
    pthread_mutex_unlock(&link->lock);
    buf_free(&payload);
}

/* ---- listening ---- */

static bool parse_note(const char *payload, struct arena *a, struct store_note *out)
{
    struct str s = str_of(payload);
    size_t hex = sizeof(out->id.b) * 2;

    *out = (struct store_note){0};
    if (s.n < 1 + hex)
        return false;
    out->kind = s.p[0];
    for (size_t i = 0; i < hex; i++) {
        const char *digits = "0123456789abcdef", *at = memchr(digits, s.p[1 + i], 16);

        if (at == NULL)
            return false;
        out->id.b[i / 2] = (uint8_t)(out->id.b[i / 2] << 4 | (at - digits));
    }
    out->text = arena_str(a, str_slice(s, 1 + hex, s.n));
    return true;
}

static bool next_note(struct postgres_link *link, struct arena *a, struct store_note *out)
{
    PGnotify *n;
    bool found = false;

    while (!found && (n = PQnotifies(link->listener)) != NULL) {
        pthread_mutex_lock(&link->lock);
        found = n->be_pid != link->notifier_pid && n->be_pid != link->listener_pid;
        if (found && strcmp(n->extra, HELLO) == 0)
            link->look_at = 0;
        pthread_mutex_unlock(&link->lock);
        found = found && parse_note(n->extra, a, out);
        PQfreemem(n);
    }
    return found;
}

static void wait_us(int fd, int64_t timeout_us)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    (void)poll(&p, fd < 0 ? 0 : 1,
               timeout_us <= 0 ? 0 : (int)((timeout_us + US_PER_MS - 1) / US_PER_MS));
}

static bool listener_up(struct postgres_link *link)
{
    struct err e;
    bool alone;

    if (link->listener != NULL && PQstatus(link->listener) == CONNECTION_OK)
        return true;
    postgres_disconnect(link->server, link->listener);
    link->listener = NULL;
    atomic_store(&link->leads, false); /* the lock went with the connection */
    if (clock_mono_us() < link->retry_at)
        return false;
    link->retry_at = clock_mono_us() + RETRY_US;
    return listener_connect(link, &alone, &e);
}

/* Whoever holds this lock does the background work, until its connection ends. */
static void try_to_lead(struct postgres_link *link)
{
    const char *values[] = {link->leader_key};
    PGresult *r;

    if (atomic_load(&link->leads) || clock_mono_us() < link->lead_at)
        return;
    link->lead_at = clock_mono_us() + LEAD_AGAIN_US;
    r = PQexecParams(link->listener, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", 1,
                     NULL, values, NULL, NULL, 0);
    atomic_store(&link->leads, PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1 &&
                                   PQgetvalue(r, 0, 0)[0] == 't');
    PQclear(r);
}

bool postgres_link_leads(const struct postgres_link *link)
{
    return atomic_load(&link->leads);
}

bool postgres_link_listen(struct postgres_link *link, int64_t timeout_us, struct arena *a,
                          struct store_note *out)
{
    int64_t until = clock_mono_us() + timeout_us, left = timeout_us;

    for (;;) {
        bool up = listener_up(link);

        if (up)
            try_to_lead(link);
        if (up && next_note(link, a, out))
            return true;
        if (left <= 0)
            return false;
        wait_us(up ? PQsocket(link->listener) : -1, up || left < RETRY_US ? left : RETRY_US);
        if (up)
            (void)PQconsumeInput(link->listener);
        left = until - clock_mono_us();
    }
}

/* ---- open, close ---- */

struct postgres_link *postgres_link_open(struct postgres_server *server, const char *leader_key,
                                         struct err *e)
{
    struct postgres_link *link = xzalloc(sizeof(*link));

    link->server = server;
    link->leader_key = xstrdup(str_of(leader_key == NULL ? DEFAULT_LEADER_KEY : leader_key));
    pthread_mutex_init(&link->lock, NULL);
    pthread_cond_init(&link->cond, NULL);
    if (!listener_connect(link, &link->alone, e)) {
        postgres_link_close(link);
        return NULL;
    }
    link->started = pthread_create(&link->thread, NULL, notify_thread, link) == 0;
    if (link->started)
        return link;
    err_set(e, ERR_UNAVAILABLE, "cannot start a thread");
    postgres_link_close(link);
    return NULL;
}

void postgres_link_close(struct postgres_link *link)
{
    if (link == NULL)
        return;
    if (link->started) {
        pthread_mutex_lock(&link->lock);
        link->stop = true;
        pthread_cond_signal(&link->cond);
        pthread_mutex_unlock(&link->lock);
        pthread_join(link->thread, NULL);
    }
    postgres_disconnect(link->server, link->listener);
    map_free(&link->pending);
    buf_free(&link->order);
    pthread_cond_destroy(&link->cond);
    pthread_mutex_destroy(&link->lock);
    free(link->leader_key);
    free(link);
}

bool postgres_link_was_alone(const struct postgres_link *link)
{
    return link->alone;
}
