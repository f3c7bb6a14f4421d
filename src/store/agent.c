/* SPDX-License-Identifier: Apache-2.0
 * Rows of agents. Their schemas stay in the row whatever their size: they are written seldom, and
 * what is replaced must leave nothing behind. */
#include "store/internal.h"

#define AGENT_COLUMNS                                                                              \
    "a.id, a.webhook_url, a.secret, a.previous_secret, a.previous_secret_until, a.policy_bundle, " \
    "a.description,"                                                                               \
    " a.input_schema, a.output_schema, a.lease_timeout, a.registered_at"

static void read_agent(struct db *db, struct arena *a, struct agent_view *out)
{
    out->id = db_get_copy(db, 0, a);
    out->webhook_url = db_get_copy(db, 1, a);
    out->secret = db_get_copy(db, 2, a);
    out->previous_secret = db_get_copy(db, 3, a);
    out->previous_secret_until = db_get_int(db, 4);
    out->policy_bundle = db_get_copy(db, 5, a);
    out->description = db_get_copy(db, 6, a);
    out->input_schema = db_get_copy(db, 7, a);
    out->output_schema = db_get_copy(db, 8, a);
    out->lease_timeout_us = db_get_int(db, 9);
    out->registered_at = db_get_int(db, 10);
}

/* ---- load ---- */

/* Creating an execution shares the row; who wants to know whether executions live keeps new ones
 * out. */
static const struct db_sql SQL_AGENT_LOAD = {
    .name = "agent_load",
    .sqlite = "SELECT " AGENT_COLUMNS " FROM agents a WHERE a.id = $1",
    .postgres =
        "SELECT u.ord, " AGENT_COLUMNS " FROM unnest($1::text[]) WITH ORDINALITY u (id, ord)"
        " JOIN agents a ON a.id = u.id ORDER BY a.id FOR KEY SHARE OF a",
    .types = "T",
};
static const struct db_sql SQL_AGENT_LOCK = {
    .name = "agent_lock",
    .sqlite = "SELECT " AGENT_COLUMNS " FROM agents a WHERE a.id = $1",
    .postgres =
        "SELECT u.ord, " AGENT_COLUMNS " FROM unnest($1::text[]) WITH ORDINALITY u (id, ord)"
        " JOIN agents a ON a.id = u.id ORDER BY a.id FOR UPDATE OF a",
    .types = "T",
};
static const struct db_sql SQL_AGENT_HAS_LIVE = {
    .name = "agent_has_live",
    .sqlite = "SELECT 1 WHERE EXISTS (SELECT 1 FROM executions e"
              " WHERE e.agent_id = $1 AND e.status IN " LIVE_EXECUTION_STATUSES ")",
    .postgres =
        "SELECT u.ord FROM unnest($1::text[]) WITH ORDINALITY u (id, ord)"
        " CROSS JOIN (VALUES ('pending'), ('running'), ('blocked')) s (status) CROSS JOIN LATERAL"
        " (SELECT 1 FROM executions e WHERE e.agent_id = u.id AND e.status = s.status LIMIT 1) l",
    .types = "T",
};

struct agent_pass { /* the agents of one call: those that want_live, or the others */
    struct load *ld;
    struct loaded_agent **rows;
    size_t n;
};

static void on_agent(void *ctx, struct db *db, size_t row)
{
    struct agent_pass *pass = ctx;
    struct loaded_agent *la = pass->rows[row];
    struct agent_view view;

    read_agent(db, &pass->ld->ws->arena, &view);
    la->found = true;
    la->row.webhook_url = view.webhook_url;
    la->row.secret = view.secret;
    la->row.previous_secret = view.previous_secret;
    la->row.previous_secret_until = view.previous_secret_until;
    la->row.policy_bundle = view.policy_bundle;
    la->row.description = view.description;
    la->row.input_schema = view.input_schema;
    la->row.output_schema = view.output_schema;
    la->row.lease_timeout_us = view.lease_timeout_us;
    la->row.registered_at = view.registered_at;
}

static void on_live_agent(void *ctx, struct db *db, size_t row)
{
    struct agent_pass *pass = ctx;

    (void)db;
    pass->rows[row]->row.has_live = true;
}

static void call_for_agents(struct agent_pass *pass, const struct db_sql *sql, db_row_fn *on_row)
{
    struct db *db = pass->ld->db;

    db_call(db, sql, on_row, pass);
    for (size_t i = 0; i < pass->n; i++) {
        db_text(db, pass->rows[i]->row.id);
        db_row(db);
    }
    db_end(db);
}

/* One row an agent, however often it is named; want_live wins. */
static void gather_agents(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->agents.n; i++) {
        const struct agent_ref *ref = &need->agents.at[i];
        size_t at = 0;

        while (at < ld->agents.n && !str_eq(ld->agents.at[at]->row.id, ref->id))
            at++;
        if (at == ld->agents.n) {
            list_add(ld->agents, arena_new(&ld->ws->arena, struct loaded_agent));
            ld->agents.at[at]->row.id = ref->id;
        }
        ld->agents.at[at]->row.live_known |= ref->want_live;
    }
}

static struct agent_pass *pass_of(struct load *ld, bool want_live)
{
    struct agent_pass *pass = arena_new(&ld->ws->arena, struct agent_pass);

    pass->ld = ld;
    pass->rows = arena_array(&ld->ws->arena, struct loaded_agent *, ld->agents.n);
    for (size_t i = 0; i < ld->agents.n; i++)
        if (ld->agents.at[i]->row.live_known == want_live)
            pass->rows[pass->n++] = ld->agents.at[i];
    return pass;
}

void agent_load(struct load *ld)
{
    struct agent_pass *plain, *live;

    if (ld->ws->need.agents.n == 0)
        return;
    gather_agents(ld);
    plain = pass_of(ld, false);
    live = pass_of(ld, true);
    if (plain->n > 0)
        call_for_agents(plain, &SQL_AGENT_LOAD, on_agent);
    if (live->n > 0) {
        call_for_agents(live, &SQL_AGENT_LOCK, on_agent);
        call_for_agents(live, &SQL_AGENT_HAS_LIVE, on_live_agent);
    }
}

void agent_put(struct load *ld)
{
    for (size_t i = 0; i < ld->agents.n; i++) {
        struct loaded_agent *la = ld->agents.at[i];

        if (la->found)
            (void)ws_put_agent(ld->ws, &la->row);
        else
            ws_put_absent_agent(ld->ws, la->row.id);
    }
}

/* ---- apply ---- */

static const struct db_sql SQL_AGENT_INSERT = {
    .name = "agent_insert",
    .sqlite = "INSERT INTO agents (id, webhook_url, secret, previous_secret, "
              "previous_secret_until, policy_bundle,"
              " description, input_schema, output_schema, lease_timeout, registered_at)"
              " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    .types = "ttbbibbbbii",
    .exact = true,
};
static const struct db_sql SQL_AGENT_UPDATE = {
    .name = "agent_update",
    .sqlite = "UPDATE agents SET webhook_url = $2, secret = $3, previous_secret = $4, "
              "previous_secret_until = $5,"
              " policy_bundle = $6, description = $7, input_schema = $8, output_schema = $9, "
              "lease_timeout = $10,"
              " registered_at = $11 WHERE id = $1",
    .types = "ttbbibbbbii",
    .exact = true,
};
static const struct db_sql SQL_AGENT_DELETE = {
    .name = "agent_delete",
    .sqlite = "DELETE FROM agents WHERE id = $1",
    .types = "t",
};

static void write_agent(struct db *db, const struct agent *agent)
{
    db_call(db, agent->row == ROW_NEW ? &SQL_AGENT_INSERT : &SQL_AGENT_UPDATE, NULL, NULL);
    db_text(db, agent->id);
    db_text(db, agent->webhook_url);
    db_bytes(db, agent->secret);
    db_bytes(db, agent->previous_secret);
    db_int_opt(db, agent->previous_secret_until);
    db_bytes(db, agent->policy_bundle);
    db_bytes(db, agent->description);
    db_bytes(db, agent->input_schema);
    db_bytes(db, agent->output_schema);
    db_int_opt(db, agent->lease_timeout_us);
    db_int(db, agent->registered_at);
    db_one(db);
}

/* In the order of the changes: an agent may be deleted and registered anew in one group. */
void agent_apply(struct apply *ap)
{
    for (size_t i = 0; i < ap->changes->agents.n; i++) {
        const struct agent *agent = ap->changes->agents.at[i];

        if (!agent->removed) {
            write_agent(ap->db, agent);
            continue;
        }
        db_call(ap->db, &SQL_AGENT_DELETE, NULL, NULL);
        db_text(ap->db, agent->id);
        db_one(ap->db);
    }
}

/* ---- reads ---- */

static const struct db_sql SQL_AGENT_READ = {
    .name = "agent_read",
    .sqlite = "SELECT " AGENT_COLUMNS " FROM agents a WHERE a.id = $1",
    .types = "t",
};
static const struct db_sql SQL_AGENT_LIST = {
    .name = "agent_list",
    .sqlite = "SELECT " AGENT_COLUMNS " FROM agents a ORDER BY a.id",
    .types = "",
};

struct agent_views {
    struct arena *arena;
    LIST(struct agent_view) rows;
};

static void on_agent_view(void *ctx, struct db *db, size_t row)
{
    struct agent_views *views = ctx;
    struct agent_view view;

    (void)row;
    read_agent(db, views->arena, &view);
    list_add(views->rows, view);
}

bool store_read_agent(struct store_reader *r, struct str id, struct arena *a,
                      struct agent_view *out, bool *found, struct err *e)
{
    struct agent_views views = {.arena = a};
    bool ok;

    db_call(r->db, &SQL_AGENT_READ, on_agent_view, &views);
    db_text(r->db, id);
    db_one(r->db);
    ok = db_flush(r->db, e);
    *found = ok && views.rows.n > 0;
    if (*found)
        *out = views.rows.at[0];
    list_free(views.rows);
    return ok;
}

bool store_list_agents(struct store_reader *r, struct arena *a, struct agent_view **out, size_t *n,
                       struct err *e)
{
    struct agent_views views = {.arena = a};
    bool ok;

    db_call(r->db, &SQL_AGENT_LIST, on_agent_view, &views);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(views.rows, a, out, n);
    return ok;
}
