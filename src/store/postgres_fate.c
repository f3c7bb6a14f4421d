/* SPDX-License-Identifier: Apache-2.0 */
#include "store/postgres_fate.h"

#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/postgres_conn.h"

static const int64_t PATIENCE_US = 5 * US_PER_S;

#define SERVER_NOW "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

const struct db_sql POSTGRES_FORGET_WRITERS = {
    .name = "forget_writers",
    .postgres = "DELETE FROM writers WHERE id IN (SELECT id FROM writers"
                " WHERE seen_at < " SERVER_NOW " - 86400000000 FOR UPDATE SKIP LOCKED)",
    .types = "",
};
const struct db_sql POSTGRES_ADD_WRITER = {
    .name = "add_writer",
    .postgres = "INSERT INTO writers (id, number, seen_at) VALUES ($1, $2, " SERVER_NOW ")"
                " ON CONFLICT (id) DO NOTHING",
    .types = "bi",
};
const struct db_sql POSTGRES_MARK = {
    .name = "mark",
    .postgres =
        "UPDATE writers SET number = $2, seen_at = " SERVER_NOW " WHERE id = $1 AND number < $2",
    .types = "bi",
    .exact = true,
};

void marker_values(const struct postgres_marker *m, struct db_value out[MARKER_VALUES])
{
    out[0] = (struct db_value){.type = DB_BYTES, .s = str_make((const char *)m->id, sizeof(m->id))};
    out[1] = (struct db_value){.type = DB_INT, .i = m->number};
}

enum fate { FATE_COMMITTED, FATE_REFUSED, FATE_OPEN };

/* One statement, so that it may be asked again when its own answer is lost. */
static const char ASK[] = "UPDATE writers"
                          " SET number = CASE WHEN number < $2::bigint THEN $3::bigint"
                          " ELSE number END WHERE id = $1::bytea RETURNING number";

static enum fate ask_on(PGconn *c, const struct postgres_marker *m)
{
    char own[24], past[24];
    const char *values[] = {(const char *)m->id, own, past};
    const int lengths[] = {sizeof(m->id), 0, 0}, formats[] = {1, 0, 0};
    enum fate fate = FATE_OPEN;
    PGresult *r;

    snprintf(own, sizeof(own), "%lld", (long long)m->number);
    snprintf(past, sizeof(past), "%lld", (long long)m->number + 1);
    r = PQexecParams(c, ASK, COUNT(values), NULL, values, lengths, formats, 0);
    if (PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1) {
        if (strcmp(PQgetvalue(r, 0, 0), own) == 0)
            fate = FATE_COMMITTED;
        else if (strcmp(PQgetvalue(r, 0, 0), past) == 0)
            fate = FATE_REFUSED;
    }
    PQclear(r);
    return fate;
}

/* FATE_OPEN when it could not be asked, or when the row stays locked. */
static enum fate ask(struct postgres_server *server, const struct postgres_marker *m,
                     int64_t until_us)
{
    struct err e;
    PGconn *c = postgres_connect(server, &e);
    int64_t left_ms = (until_us - clock_mono_us()) / US_PER_MS;
    enum fate fate = FATE_OPEN;
    char limits[96];

    if (c == NULL)
        return fate;
    if (left_ms < 1) /* 0 would be no limit */
        left_ms = 1;
    snprintf(limits, sizeof(limits), "SET lock_timeout = %lld; SET statement_timeout = %lld",
             (long long)left_ms, (long long)left_ms);
    if (postgres_run(c, limits, &e))
        fate = ask_on(c, m);
    postgres_disconnect(server, c);
    return fate;
}

bool postgres_learn_fate(struct postgres_server *server, const struct postgres_marker *m,
                         bool *unknown)
{
    int64_t until = clock_mono_us() + PATIENCE_US;
    struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    enum fate fate;

    while ((fate = ask(server, m, until)) == FATE_OPEN && clock_mono_us() < until)
        nanosleep(&pause, NULL);
    *unknown = fate == FATE_OPEN;
    if (*unknown)
        log_event(LOG_ERROR, "store.commit_unknown", {"number", log_int(m->number)});
    return fate == FATE_COMMITTED;
}
