/* SPDX-License-Identifier: Apache-2.0 */
#include "support/store_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/clock.h"
#include "support/postgres_cluster.h"

static void remove_folder(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    (void)rmdir(path);
}

static void open_writer(struct fixture *f)
{
    struct err e = {0};

    f->w = store_writer_open(f->store, &e);
    if (f->w == NULL)
        fail_msg("store_writer_open: %s", e.message);
    ws_init(&f->ws, &f->settings, &f->ids, &f->random);
    f->ws.keep_leased = store_is_sqlite(f->store);
}

static void open_store(struct fixture *f)
{
    struct store_options opt = {.url = f->url};
    struct err e = {0};

    f->store = store_open(&opt, &e);
    if (f->store == NULL)
        fail_msg("store_open: %s", e.message);
    open_writer(f);
    f->r = store_reader_open(f->store, &e);
    if (f->r == NULL)
        fail_msg("store_reader_open: %s", e.message);
}

static void close_store(struct fixture *f)
{
    ws_free(&f->ws);
    store_writer_close(f->w);
    store_reader_close(f->r);
    store_close(f->store);
}

void fixture_open(struct fixture *f, enum fixture_kind kind)
{
    *f = (struct fixture){.kind = kind};
    f->settings = (struct kernel_settings){.dispatch_max_attempts = 5,
                                           .dispatch_timeout_us = 30 * US_PER_S,
                                           .lease_timeout_us = 120 * US_PER_S};
    prng_seed(&f->random, 42);
    switch (kind) {
    case FIXTURE_SQLITE:
        snprintf(f->folder, sizeof(f->folder), "/tmp/store-test-XXXXXX");
        assert_non_null(mkdtemp(f->folder));
        snprintf(f->url, sizeof(f->url), "sqlite://%s/test.db", f->folder);
        break;
    case FIXTURE_MEMORY:
        snprintf(f->url, sizeof(f->url), "memory:");
        break;
    case FIXTURE_POSTGRES:
        postgres_cluster_database(f->url, sizeof(f->url));
        break;
    }
    open_store(f);
}

void fixture_close(struct fixture *f)
{
    close_store(f);
    arena_free(&f->arena);
    if (f->folder[0] != '\0')
        remove_folder(f->folder);
    if (f->kind == FIXTURE_POSTGRES)
        postgres_cluster_drop(f->url);
}

void fixture_reopen(struct fixture *f)
{
    close_store(f);
    open_store(f);
}

void fixture_second_open(struct fixture *f, struct fixture *second)
{
    *second = (struct fixture){.kind = f->kind, .settings = f->settings, .store = f->store};
    prng_seed(&second->random, 43);
    open_writer(second);
}

void fixture_second_close(struct fixture *second)
{
    ws_free(&second->ws);
    store_writer_close(second->w);
    arena_free(&second->arena);
}

static int take_first(void *ctx, int n, char **values, char **names)
{
    char *out = ctx;

    (void)names;
    if (out[0] == '\0' && n > 0 && values[0] != NULL)
        snprintf(out, 256, "%s", values[0]);
    return 0;
}

const char *fixture_sql(struct fixture *f, const char *sql)
{
    static char first[256];
    char path[128], *error = NULL;
    sqlite3 *h;

    if (f->kind == FIXTURE_POSTGRES)
        return postgres_cluster_query(f->url, sql);
    first[0] = '\0';
    snprintf(path, sizeof(path), "%s/test.db", f->folder);
    assert_int_equal(sqlite3_open(path, &h), SQLITE_OK);
    if (sqlite3_exec(h, sql, take_first, first, &error) != SQLITE_OK)
        fail_msg("%s: %s", sql, error);
    sqlite3_close(h);
    return first;
}

/* What a connection has counted shows once it has ended. */
static void end_connections(struct fixture *f)
{
    char sql[320];

    snprintf(sql, sizeof(sql),
             "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
             " AND backend_start < '%s'",
             fixture_sql(f, "SELECT clock_timestamp()"));
    fixture_reopen(f);
    for (int tries = 0; strcmp(fixture_sql(f, sql), "0") != 0; tries++) {
        struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};

        assert_in_range(tries, 0, 1000);
        nanosleep(&pause, NULL);
    }
}

static int64_t ask_number(struct fixture *f, const char *sql)
{
    int64_t n;

    assert_true(str_to_int64(str_of(fixture_sql(f, sql)), &n));
    return n;
}

int64_t fixture_pages_read(struct fixture *f, const char *table)
{
    char sql[160];

    end_connections(f);
    snprintf(sql, sizeof(sql),
             "SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read"
             " FROM pg_statio_user_tables WHERE relname = '%s'",
             table);
    return ask_number(f, sql);
}

int64_t fixture_rows_read(struct fixture *f, const char *tables)
{
    char sql[320];

    end_connections(f);
    snprintf(sql, sizeof(sql),
             "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN (%s))"
             " + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN (%s))",
             tables, tables);
    return ask_number(f, sql);
}

void assert_str(struct str got, struct str want)
{
    assert_int_equal(str_present(got), str_present(want));
    assert_int_equal(got.n, want.n);
    if (want.n > 0)
        assert_memory_equal(got.p, want.p, want.n);
}

struct uuid fixture_uuid(struct fixture *f)
{
    return uuid_next(&f->ids, clock_wall_us());
}

struct hash fixture_hash(uint64_t seed)
{
    struct hash h;

    hash_sha256(str_make(&seed, sizeof(seed)), &h);
    return h;
}

struct call_key fixture_call(uint64_t seed)
{
    struct hash h = fixture_hash(seed);
    struct call_key c;

    memcpy(c.b, h.b, sizeof(c.b));
    return c;
}

void fixture_load(struct fixture *f)
{
    struct err e = {0};

    if (!store_load(f->w, &f->ws, &e))
        fail_msg("store_load: %s", e.message);
}

void fixture_commit(struct fixture *f)
{
    struct err e = {0};
    bool unknown;

    if (!store_commit(f->w, &f->ws, &unknown, &e))
        fail_msg("store_commit: %s", e.message);
    ws_end_group(&f->ws);
}

void fixture_agent(struct fixture *f, const char *id)
{
    struct agent *agent;

    ws_need_agent(&f->ws, str_of(id), false);
    fixture_load(f);
    agent = ws_new_agent(&f->ws, str_of(id));
    agent->webhook_url = STR("http://127.0.0.1:9/hook");
    agent->secret = STR("secret");
    agent->registered_at = f->ws.now.wall_us;
    fixture_commit(f);
}

struct execution *fixture_pending(struct fixture *f, const char *agent_id, struct str session)
{
    struct uuid id = fixture_uuid(f);
    struct execution *exec = ws_new_execution(&f->ws, &id, str_of(agent_id), session);

    exec->status = EXECUTION_PENDING;
    exec->created_at = f->ws.now.wall_us;
    exec->input = STR("{\"a\":1}");
    fixture_event(f, exec, "execution.created\t\"a\":1\n");
    return exec;
}

struct execution *fixture_execution(struct fixture *f, const char *agent_id)
{
    struct execution *exec = fixture_pending(f, agent_id, STR_NONE);
    struct uuid dispatch = fixture_uuid(f);

    exec->status = EXECUTION_RUNNING;
    ws_new_dispatch(&f->ws, exec, &dispatch);
    exec->dispatch->status = DISPATCH_QUEUED;
    exec->dispatch->due_at = exec->dispatch->queued_at = f->ws.now.wall_us;
    return exec;
}

struct execution *fixture_get(struct fixture *f, const struct uuid *id)
{
    if (!ws_knows_execution(&f->ws, id)) {
        ws_need_execution(&f->ws, id);
        fixture_load(f);
    }
    return ws_execution(&f->ws, id);
}

void fixture_claim(struct fixture *f, struct execution *exec)
{
    struct dispatch *d = exec->dispatch;

    d->status = DISPATCH_ACKED;
    d->attempt++;
    d->lease_us = f->settings.lease_timeout_us;
    exec->claim++;
    exec->owner = OWNER_WORKING;
    exec->owner_dispatch = d->id;
    exec->owner_attempt = d->attempt;
    exec->owner_lease_us = d->lease_us;
    exec->lease_until = f->ws.now.lease_us + d->lease_us;
    ws_clear_tallies(exec);
    ws_touch_execution(&f->ws, exec);
    ws_touch_dispatch(&f->ws, exec);
}

struct uuid fixture_claimed(struct fixture *f)
{
    struct uuid id;

    fixture_load(f);
    id = fixture_execution(f, "a")->id;
    fixture_commit(f);
    fixture_claim(f, fixture_get(f, &id));
    fixture_commit(f);
    return id;
}

struct step *fixture_step(struct fixture *f, struct execution *exec, const struct hash *id,
                          struct str args)
{
    struct step *step = ws_new_step(&f->ws, exec, id);

    step->kind = KIND_TOOL_CALL;
    step->target = str_make(xstrdup(STR("send")), 4);
    step->args_hash = fixture_hash(7);
    step->status = STEP_EXECUTING;
    step->idempotency = AT_MOST_ONCE;
    step->claim = exec->claim;
    step->args = args;
    step->created_at = step->started_at = f->ws.now.wall_us;
    fixture_event(f, exec, "step.proposed\t\"step_id\":1\nstep.allowed\t&\nstep.executing\t&\n");
    return step;
}

struct approval *fixture_approval(struct fixture *f, struct execution *exec,
                                  const struct hash *step_id, int64_t timeout_at)
{
    struct uuid id = fixture_uuid(f);
    struct approval *approval = ws_new_approval(&f->ws, exec, &id);

    approval->step_id = *step_id;
    approval->created_at = f->ws.now.wall_us;
    approval->timeout_at = timeout_at;
    return approval;
}

void fixture_settle(struct fixture *f, struct step *step, struct str result)
{
    step->status = STEP_SUCCEEDED;
    step->result = result;
    step->completed_at = f->ws.now.wall_us;
    ws_touch_step(&f->ws, step);
    ws_step_left_live(step);
    fixture_event(f, step->execution, "step.succeeded\t\"step_id\":1\n");
}

void fixture_event(struct fixture *f, struct execution *exec, const char *lines)
{
    struct transition *t = ws_transition(&f->ws, exec);

    for (const char *p = lines; *p != '\0'; p++) {
        if (*p == '\n') {
            t->count++;
            exec->last_seq++;
        }
    }
    buf_add_z(&t->body, lines);
}

void fixture_count(struct fixture *f, struct execution *exec, uint64_t call, const char *key,
                   const struct hash *step_id)
{
    struct tally_ref ref = {
        .execution_id = exec->id, .call = fixture_call(call), .has_key = key != NULL};

    if (key != NULL)
        memcpy(ref.key, key, strnlen(key, sizeof(ref.key)));
    ws_count_submission(&f->ws, exec, &ref, step_id);
}
