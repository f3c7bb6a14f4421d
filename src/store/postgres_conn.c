/* SPDX-License-Identifier: Apache-2.0 */
#include "store/postgres_conn.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/log.h"

enum { SERVER_MIN = 130000 };

/* Every statement is made for index look-ups by key. A plan chosen while the tables were small, or
 * before the first ANALYZE, would scan them whole once they have grown, so the planner is not given
 * that choice; and with nothing to choose, planning once is enough. */
static const char SESSION[] =
    "SET client_encoding = 'UTF8'; SET default_transaction_isolation = 'read committed';"
    "SET statement_timeout = '60s'; SET lock_timeout = '10s'; SET "
    "idle_in_transaction_session_timeout = '120s';"
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = "
    "off;"
    "SET plan_cache_mode = force_generic_plan;"
    /* A cluster may ask for more than "on" (remote_apply); it may not get less. */
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') IN ('off', 'local')";

static void ignore_notice(void *arg, const char *message)
{
    (void)arg;
    (void)message;
}

static bool session_begin(PGconn *c, struct err *e)
{
    if (PQserverVersion(c) < SERVER_MIN)
        return err_set(e, ERR_UNAVAILABLE, "PostgreSQL %d is too old; 13 or later is needed",
                       PQserverVersion(c) / 10000);
    return postgres_run(c, SESSION, e);
}

/* The end of a connection shows on its socket, which libpq closes. */
static void leave(struct postgres_server *server, PGconn *c)
{
    int fd = c == NULL ? -1 : PQsocket(c);

    if (fd >= 0)
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    PQfinish(c);
    if (fd >= 0)
        (void)shutdown(fd, SHUT_WR);
    postgres_seat_leave(server, fd);
}

PGconn *postgres_connect(struct postgres_server *server, struct err *e)
{
    /* What the address says comes later in the list and wins. */
    static const char *const keys[] = {"application_name",
                                       "connect_timeout",
                                       "keepalives",
                                       "keepalives_idle",
                                       "keepalives_interval",
                                       "keepalives_count",
                                       "tcp_user_timeout",
                                       "dbname",
                                       NULL};
    const char *values[] = {
        "rebuno", "5", "1", "10", "5", "3", "20000", postgres_server_url(server), NULL};
    PGconn *c;

    if (!postgres_seat_take(server, e))
        return NULL;
    c = PQconnectdbParams(keys, values, 1);
    if (c == NULL || PQstatus(c) != CONNECTION_OK) {
        struct str why = c == NULL ? STR("out of memory") : str_of(PQerrorMessage(c));

        while (why.n > 0 && why.p[why.n - 1] == '\n')
            why.n--;
        err_set(e, ERR_UNAVAILABLE, "cannot connect to Postgres: %.*s", STR_ARG(why));
        leave(server, c);
        return NULL;
    }
    PQsetNoticeProcessor(c, ignore_notice, NULL);
    if (!session_begin(c, e)) {
        leave(server, c);
        return NULL;
    }
    return c;
}

void postgres_disconnect(struct postgres_server *server, PGconn *c)
{
    if (c != NULL)
        leave(server, c);
}

bool postgres_alive(PGconn *c)
{
    struct pollfd p;

    if (c == NULL || PQstatus(c) != CONNECTION_OK)
        return false;
    /* Nobody asked, so what a server says to an idle connection is its goodbye (or a changed
     * setting, once in a while). */
    p = (struct pollfd){.fd = PQsocket(c), .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

static enum err_code code_of(struct str state)
{
    static const struct {
        struct str state; /* or its class */
        enum err_code code;
    } KNOWN[] = {
        {STR_INIT("40"), ERR_STORE_RACE},     /* serialization failure, deadlock */
        {STR_INIT("23505"), ERR_STORE_RACE},  /* unique key */
        {STR_INIT("22012"), ERR_STORE_RACE},  /* division by zero: a guard of db_postgres.c */
        {STR_INIT("55P03"), ERR_STORE_RACE},  /* lock time-out */
        {STR_INIT("08"), ERR_UNAVAILABLE},    /* connection */
        {STR_INIT("25006"), ERR_UNAVAILABLE}, /* read-only: a standby */
        {STR_INIT("25P03"), ERR_UNAVAILABLE}, /* idle in transaction for too long */
        {STR_INIT("28"), ERR_UNAVAILABLE},    /* authorization */
        {STR_INIT("3D"), ERR_UNAVAILABLE},    /* no such database */
        {STR_INIT("53"), ERR_UNAVAILABLE},    /* disk full, out of memory, too many connections */
        {STR_INIT("57"), ERR_UNAVAILABLE},    /* shutdown, cancelled, starting up */
        {STR_INIT("58"), ERR_UNAVAILABLE},    /* I/O */
        {STR_INIT("XX"), ERR_UNAVAILABLE},    /* corruption */
    };

    for (size_t i = 0; i < COUNT(KNOWN); i++)
        if (str_starts(state, KNOWN[i].state))
            return KNOWN[i].code;
    return ERR_INTERNAL;
}

bool postgres_error(PGconn *c, const PGresult *result, const char *what, struct err *e)
{
    struct str state = str_of(result == NULL ? NULL : PQresultErrorField(result, PG_DIAG_SQLSTATE));
    struct str text =
        str_of(result == NULL ? NULL : PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
    enum err_code code = ERR_UNAVAILABLE;

    if (!str_present(text))
        text = str_of(c == NULL ? "not connected" : PQerrorMessage(c));
    while (text.n > 0 && text.p[text.n - 1] == '\n')
        text.n--;
    if (str_present(state) && PQstatus(c) == CONNECTION_OK)
        code = code_of(state);
    if (code != ERR_STORE_RACE)
        log_event(LOG_ERROR, "store.postgres_error", {"what", str_of(what)},
                  {"sqlstate", str_present(state) ? state : STR("")}, {"error", text});
    if (code == ERR_INTERNAL)
        return err_set(e, code, "the database refused a statement");
    return err_set(e, code, "the database failed: %.*s", STR_ARG(text));
}

bool postgres_run(PGconn *c, const char *sql, struct err *e)
{
    PGresult *r = PQexec(c, sql);
    ExecStatusType status = PQresultStatus(r);
    bool ok =
        status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK || status == PGRES_EMPTY_QUERY;

    if (!ok)
        (void)postgres_error(c, r, "script", e);
    PQclear(r);
    return ok;
}
