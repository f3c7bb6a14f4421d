/* SPDX-License-Identifier: Apache-2.0
 * Rows of agents. Their schemas and bundles stay in the row whatever their size: they are written
 * seldom, and what is replaced must leave nothing behind. Loading leaves them where they are, since
 * each submission loads its agent. */
#include "store/internal.h"

/* ---- load ---- */

#define LOAD_COLUMNS                                                                               \
    "a.webhook_url, a.secret, a.previous_secret, a.previous_secret_until, a.lease_timeout, "       \
    "a.registered_at, a.policy_hash"
#define SQLITE_LOAD "SELECT " LOAD_COLUMNS " FROM agents a WHERE a.id = $1"
#define POSTGRES_LOAD                                                                              \
    "SELECT u.ord, " LOAD_COLUMNS " FROM unnest($1::text[]) WITH ORDINALITY u (id, ord)"           \
    " JOIN agents a ON a.id = u.id"

/* Most only read it. Creating an execution shares it, so that it is not removed meanwhile; who
 * wants to know whether executions live keeps new ones out. */
enum hold { HOLD_NOT, HOLD_SHARED, HOLD_ALONE, HOLDS };
static const struct db_sql SQL_AGENT_LOAD[HOLDS] = {
    [HOLD_NOT] =
        {
            .name = "agent_load",
            .sqlite = SQLITE_LOAD,
            .postgres = POSTGRES_LOAD,
            .types = "T",
        },
    [HOLD_SHARED] =
        {
            .name = "agent_share",
            .sqlite = SQLITE_LOAD,
            .postgres = POSTGRES_LOAD " ORDER BY a.id FOR KEY SHARE OF a",
            .types = "T",
        },
    [HOLD_ALONE] =
        {
            .name = "agent_lock",
            .sqlite = SQLITE_LOAD,
            .postgres = POSTGRES_LOAD " ORDER BY a.id FOR UPDATE OF a",
            .types = "T",
        },
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

struct agent_pass { /* the agents of one call: those that are held alike */
    struct load *ld;
    struct loaded_agent **rows;
    size_t n;
};

static void on_agent(void *ctx, struct db *db, size_t row)
{
    struct agent_pass *pass = ctx;
    struct arena *arena = &pass->ld->ws->arena;
    struct loaded_agent *la = pass->rows[row];
    struct agent *agent = &la->row;

    la->found = true;
    agent->webhook_url = db_get_copy(db, 0, arena);
    agent->secret = db_get_copy(db, 1, arena);
    agent->previous_secret = db_get_copy(db, 2, arena);
    agent->previous_secret_until = db_get_int(db, 3);
    agent->lease_timeout_us = db_get_int(db, 4);
    agent->registered_at = db_get_int(db, 5);
    agent->has_policy = str_present(db_get_str(db, 6));
    db_get_hash(db, 6, &agent->policy_hash);
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

/* One row an agent, however often it is named; what holds it most wins. */
static void gather_agents(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->agents.n; i++) {
        const struct agent_ref *ref = &need->agents.at[i];
        struct loaded_agent *la = map_get(&ld->agent_map, ref->id);

        if (la == NULL) {
            la = arena_new(&ld->ws->arena, struct loaded_agent);
            la->row.id = ref->id;
            map_put(&ld->agent_map, ref->id, la);
            list_add(ld->agents, la);
        }
        la->row.live_known |= ref->want_live;
        la->row.kept |= ref->keep || ref->want_live;
    }
}

static enum hold hold_of(const struct agent *agent)
{
    if (agent->live_known)
        return HOLD_ALONE;
    return agent->kept ? HOLD_SHARED : HOLD_NOT;
}

static struct agent_pass *load_held(struct load *ld, enum hold hold)
{
    struct agent_pass *pass = arena_new(&ld->ws->arena, struct agent_pass);

    pass->ld = ld;
    pass->rows = arena_array(&ld->ws->arena, struct loaded_agent *, ld->agents.n);
    for (size_t i = 0; i < ld->agents.n; i++)
        if (hold_of(&ld->agents.at[i]->row) == hold)
            pass->rows[pass->n++] = ld->agents.at[i];
    call_for_agents(pass, &SQL_AGENT_LOAD[hold], on_agent);
    return pass;
}

void agent_load_held(struct load *ld)
{
    if (ld->ws->need.agents.n == 0)
        return;
    gather_agents(ld);
    (void)load_held(ld, HOLD_SHARED);
    call_for_agents(load_held(ld, HOLD_ALONE), &SQL_AGENT_HAS_LIVE, on_live_agent);
}

void agent_load_read(struct load *ld)
{
    if (ld->agents.n > 0)
        (void)load_held(ld, HOLD_NOT);
}

void agent_put(struct load *ld)
{
    for (size_t i = 0; i < ld->agents.n; i++) {
        struct loaded_agent *la = ld->agents.at[i];

        la->row.kept |= ld->w->store->kind->sqlite; /* there this writer is the only one */
        if (la->found)
            (void)ws_put_agent(ld->ws, &la->row);
        else
            ws_put_absent_agent(ld->ws, la->row.id);
    }
}

/* ---- apply ---- */

static const struct db_sql SQL_AGENT_INSERT = {
    .name = "agent_insert",
    .sqlite =
        "INSERT INTO agents (id, webhook_url, secret, previous_secret, previous_secret_until, "
        "lease_timeout, registered_at, policy_bundle, policy_hash, description, input_schema, "
        "output_schema)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    .types = "ttbbiiibbbbb",
    .exact = true,
};
/* Only what was changed: what was not loaded must not be written. */
static const struct db_sql SQL_AGENT_REGISTERED = {
    .name = "agent_registered",
    .sqlite = "UPDATE agents SET webhook_url = $2, secret = $3, previous_secret = $4,"
              " previous_secret_until = $5, lease_timeout = $6, registered_at = $7 WHERE id = $1",
    .types = "ttbbiii",
    .exact = true,
};
static const struct db_sql SQL_AGENT_POLICY = {
    .name = "agent_policy",
    .sqlite = "UPDATE agents SET policy_bundle = $2, policy_hash = $3 WHERE id = $1",
    .types = "tbb",
    .exact = true,
};
static const struct db_sql SQL_AGENT_DESCRIBED = {
    .name = "agent_described",
    .sqlite = "UPDATE agents SET description = $2, input_schema = $3, output_schema = $4"
              " WHERE id = $1",
    .types = "tbbb",
    .exact = true,
};
static const struct db_sql SQL_AGENT_DELETE = {
    .name = "agent_delete",
    .sqlite = "DELETE FROM agents WHERE id = $1",
    .types = "t",
};

static void bind_registration(struct db *db, const struct agent *agent)
{
    db_text(db, agent->webhook_url);
    db_bytes(db, agent->secret);
    db_bytes(db, agent->previous_secret);
    db_int_opt(db, agent->previous_secret_until);
    db_int_opt(db, agent->lease_timeout_us);
    db_int(db, agent->registered_at);
}

static void bind_policy(struct db *db, const struct agent *agent)
{
    db_bytes(db, agent->policy_bundle);
    if (agent->has_policy)
        db_hash(db, &agent->policy_hash);
    else
        db_bytes(db, STR_NONE);
}

static void bind_description(struct db *db, const struct agent *agent)
{
    db_bytes(db, agent->description);
    db_bytes(db, agent->input_schema);
    db_bytes(db, agent->output_schema);
}

static void insert_agent(struct db *db, const struct agent *agent)
{
    db_call(db, &SQL_AGENT_INSERT, NULL, NULL);
    db_text(db, agent->id);
    bind_registration(db, agent);
    bind_policy(db, agent);
    bind_description(db, agent);
    db_one(db);
}

static void update_agent(struct db *db, const struct agent *agent)
{
    static const struct {
        unsigned part;
        const struct db_sql *sql;
        void (*bind)(struct db *db, const struct agent *agent);
    } parts[] = {
        {AGENT_REGISTRATION, &SQL_AGENT_REGISTERED, bind_registration},
        {AGENT_POLICY, &SQL_AGENT_POLICY, bind_policy},
        {AGENT_DESCRIPTION, &SQL_AGENT_DESCRIBED, bind_description},
    };

    for (size_t i = 0; i < COUNT(parts); i++) {
        if ((agent->parts & parts[i].part) == 0)
            continue;
        db_call(db, parts[i].sql, NULL, NULL);
        db_text(db, agent->id);
        parts[i].bind(db, agent);
        db_one(db);
    }
}

static void delete_agent(struct db *db, const struct agent *agent)
{
    db_call(db, &SQL_AGENT_DELETE, NULL, NULL);
    db_text(db, agent->id);
    db_one(db);
}

/* In the order of the changes: an agent may be deleted and registered anew in one group. */
void agent_apply(struct apply *ap)
{
    for (size_t i = 0; i < ap->changes->agents.n; i++) {
        const struct agent *agent = ap->changes->agents.at[i];

        if (agent->removed)
            delete_agent(ap->db, agent);
        else if (agent->row == ROW_NEW)
            insert_agent(ap->db, agent);
        else
            update_agent(ap->db, agent);
    }
}

/* ---- reads ---- */

#define VIEW_COLUMNS                                                                               \
    "a.id, a.webhook_url, a.secret, a.previous_secret, a.previous_secret_until, a.policy_bundle, " \
    "a.description,"                                                                               \
    " a.input_schema, a.output_schema, a.lease_timeout, a.registered_at"

static const struct db_sql SQL_AGENT_READ = {
    .name = "agent_read",
    .sqlite = "SELECT " VIEW_COLUMNS " FROM agents a WHERE a.id = $1",
    .types = "t",
};
static const struct db_sql SQL_AGENT_LIST = {
    .name = "agent_list",
    .sqlite = "SELECT " VIEW_COLUMNS " FROM agents a ORDER BY a.id",
    .types = "",
};

struct agent_views {
    struct arena *arena;
    LIST(struct agent_view) rows;
};

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
