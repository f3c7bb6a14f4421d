/* SPDX-License-Identifier: Apache-2.0
 * The source is read in pages, and what is copied of them is written in small parts. */
#include "engine/fork_run.h"

#include "base/fault.h"
#include "engine/executor.h"
#include "kernel/fork_copy.h"
#include "store/list.h"

enum {
    STEPS_A_PAGE = 10000, /* a page costs in proportion to all steps (store_read_fork_steps) */
    EVENTS_A_PAGE = 1000,
    CHECKPOINTS_A_PAGE = 500,
    PAGE_BYTES = 1 << 20,
    TURNS_MAX = 1000, /* that are looked at for an inherited checkpoint */
};

struct run {
    struct engine *en;
    struct store_reader *r;
    struct fork_job *job;
    const atomic_bool *stopping;
    struct fork_copy *copy;
    struct fork_source source;
    struct str agent_id;
    struct arena arena, page; /* of the whole run; of what was read last */
    /* the next part */
    LIST(struct step_copy) steps;
    LIST(struct event_copy) events; /* their bodies stand in `bodies`, one behind the other */
    struct buf bodies;
    size_t bytes; /* of its texts */
};

static bool run_command(struct run *run, struct command *cmd, struct err *e)
{
    if (atomic_load(run->stopping))
        return err_set(e, ERR_UNAVAILABLE, "the kernel is stopping; nothing was forked");
    cmd->arena = &run->arena;
    engine_run(run->en, cmd);
    if (cmd->verdict == VERDICT_DONE)
        return true;
    *e = cmd->err;
    return false;
}

static bool out_of_memory(struct err *e)
{
    return err_set(e, ERR_INTERNAL, "out of memory");
}

/* ---- parts ---- */

static struct fork_part next_part(struct run *run)
{
    const char *body = buf_str(&run->bodies).p;

    for (size_t i = 0; i < run->events.n; i++) {
        struct event_copy *event = &run->events.at[i];

        event->body.p = body; /* the buffer has moved as it grew */
        body += event->body.n;
    }
    return (struct fork_part){
        .fork_id = run->job->id,
        .slice = {.steps = run->steps.at,
                  .n_steps = run->steps.n,
                  .events = run->events.at,
                  .n_events = run->events.n},
    };
}

static void part_written(struct run *run)
{
    run->steps.n = run->events.n = 0;
    buf_clear(&run->bodies);
    run->bytes = 0;
}

static bool run_part(struct run *run, const struct fork_part *part, size_t bytes, struct err *e)
{
    struct command cmd = {.type = COMMAND_FORK_PART, .bytes = bytes};

    cmd.in.fork_part = *part;
    if (!run_command(run, &cmd, e))
        return false;
    FAULT("fork.part");
    return true;
}

static bool write_part(struct run *run, struct err *e)
{
    const struct fork_part part = next_part(run);

    if (!run_part(run, &part, run->bytes, e))
        return false;
    part_written(run);
    return true;
}

/* A row of so many bytes has been added. */
static bool row_added(struct run *run, size_t bytes, struct err *e)
{
    run->bytes += bytes;
    return (run->steps.n + run->events.n < FORK_PART_ROWS && run->bytes < FORK_PART_BYTES) ||
           write_part(run, e);
}

/* ---- reading ---- */

/* What to do with a transition. */
typedef bool event_fn(struct run *run, const struct event_row *row, struct err *e);

static bool each_event(struct run *run, event_fn *fn, struct err *e)
{
    const struct fork_job *job = run->job;

    for (int64_t after = 0; after < job->at_seq;) {
        struct event_row *rows;
        int64_t last_seq;
        bool terminal, found;
        size_t n;

        arena_reset(&run->page);
        if (!store_read_events(run->r, &job->source, after, EVENTS_A_PAGE, PAGE_BYTES, &run->page,
                               &rows, &n, &last_seq, &terminal, &found, e))
            return false;
        if (n == 0 || rows == NULL)
            return out_of_memory(e); /* at_seq is an event of the source, which is pinned */
        for (size_t i = 0; i < n && rows[i].first_seq <= job->at_seq; i++)
            if (!fn(run, &rows[i], e))
                return false;
        after = rows[n - 1].first_seq + rows[n - 1].count - 1;
    }
    return true;
}

static bool survey(struct run *run, const struct event_row *row, struct err *e)
{
    (void)e;
    fork_copy_survey(run->copy, row->first_seq, row->body);
    return true;
}

static bool copy_event(struct run *run, const struct event_row *row, struct err *e)
{
    struct event_copy out = {.occurred_at = row->occurred_at};
    size_t before = run->bodies.n;

    out.count =
        fork_copy_events(run->copy, row->first_seq, row->body, &out.first_seq, &run->bodies);
    if (run->bodies.failed)
        return out_of_memory(e);
    if (out.count == 0)
        return true;
    out.body = str_make(NULL, run->bodies.n - before); /* its place: next_part */
    list_add(run->events, out);
    return row_added(run, out.body.n, e);
}

static bool copy_steps(struct run *run, struct err *e)
{
    int64_t after = 0;

    for (;;) {
        struct step *rows;
        size_t n;

        arena_reset(&run->page);
        if (!store_read_fork_steps(run->r, &run->job->source, after, STEPS_A_PAGE, &run->page,
                                   &rows, &n, &after, e))
            return false;
        if (n == 0)
            return true;
        if (rows == NULL)
            return out_of_memory(e);
        for (size_t i = 0; i < n; i++) {
            struct step_copy out;

            if (!fork_copy_step(run->copy, &rows[i], &out))
                continue;
            list_add(run->steps, out);
            if (!row_added(run, out.target.n + out.rule_id.n + out.affects.n, e))
                return false;
        }
        if (run->steps.n > 0 && !write_part(run, e)) /* they borrow from the page */
            return false;
    }
}

static bool copy_checkpoints(struct run *run, struct err *e)
{
    int64_t after = 0;

    for (size_t n = CHECKPOINTS_A_PAGE; n == CHECKPOINTS_A_PAGE;) {
        struct checkpoint_row *rows;

        arena_reset(&run->page);
        if (!store_read_checkpoints(run->r, &run->job->source, after, CHECKPOINTS_A_PAGE,
                                    &run->page, &rows, &n, e))
            return false;
        if (n > 0 && rows == NULL)
            return out_of_memory(e);
        for (size_t i = 0; i < n; i++)
            fork_copy_checkpoint(run->copy, &rows[i].row);
        if (n > 0)
            after = rows[n - 1].key;
    }
    return true;
}

/* ---- resources ---- */

/* Of the turns before, the last one that has a checkpoint of this resource. */
static bool look_back(struct run *run, struct str key, struct inherited_checkpoint *out,
                      struct err *e)
{
    struct uuid at = run->source.parent;

    *out = (struct inherited_checkpoint){.resource = key};
    for (int turn = 0; turn < TURNS_MAX && !uuid_is_nil(&at); turn++) {
        struct newest_checkpoint newest;

        if (!store_newest_checkpoint(run->r, &at, key, &run->arena, &newest, e))
            return false;
        if (newest.found) {
            out->checkpoint_ref = newest.row.checkpoint_ref;
            out->covered_seq = newest.row.covered_seq;
            out->execution_id = newest.execution_id;
            return true;
        }
        at = newest.parent;
    }
    return true;
}

static bool copy_resources(struct run *run, struct err *e)
{
    LIST(struct inherited_checkpoint) inherited = {0};
    struct resource *rows;
    bool found, ok;
    size_t n;

    if (!store_read_resources(run->r, &run->job->source, &run->arena, &rows, &n, &found, e))
        return false;
    if (n > 0 && rows == NULL)
        return out_of_memory(e);
    ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        struct inherited_checkpoint one;

        if (!fork_copy_wants_inherited(run->copy, &rows[i]))
            continue;
        ok = look_back(run, rows[i].key, &one, e);
        list_add(inherited, one);
    }
    if (ok)
        fork_copy_resources(run->copy, rows, n, inherited.at, inherited.n);
    list_free(inherited);
    return ok;
}

/* From `from` on, as many as are left or one part takes; how many those are. */
static size_t take_checkpoints(const struct fork_copied *copied, size_t from, int64_t started,
                               struct checkpoint *rows)
{
    size_t n = 0;

    for (size_t bytes = 0;
         from + n < copied->n_checkpoints && n < FORK_PART_ROWS && bytes < FORK_PART_BYTES; n++) {
        rows[n] = copied->checkpoints[from + n];
        if (rows[n].invalidated_seq < 0)
            rows[n].invalidated_seq = started;
        bytes += rows[n].checkpoint_ref.n;
    }
    return n;
}

/* All but the last part of those that were copied. Their events stand behind those of the
 * resources, and execution.started behind them all. */
static bool write_checkpoints(struct run *run, size_t *written, struct err *e)
{
    struct fork_copied copied = fork_copy_result(run->copy);
    int64_t first_seq = copied.next_seq + (int64_t)copied.n_resources;
    int64_t started = first_seq + (int64_t)copied.n_checkpoints;
    struct checkpoint rows[FORK_PART_ROWS];

    for (*written = 0;;) {
        size_t n = take_checkpoints(&copied, *written, started, rows);
        const struct fork_part part = {
            .fork_id = run->job->id,
            .slice = {.checkpoints = rows, .n_checkpoints = n},
            .checkpoint_seq = first_seq + (int64_t)*written,
        };

        if (*written + n == copied.n_checkpoints)
            return true;
        if (!run_part(run, &part, FORK_PART_BYTES, e))
            return false;
        *written += n;
    }
}

/* ---- the order of things ---- */

static bool begin(struct run *run, bool *pinned, struct err *e)
{
    struct fork_job *job = run->job;
    struct command cmd = {.type = COMMAND_FORK_BEGIN};
    bool ok;

    cmd.in.fork_begin = (struct fork_begin){job->source, job->at_seq, job->session};
    ok = run_command(run, &cmd, e);
    *pinned = ok || cmd.unknown;
    if (*pinned)
        job->id = cmd.out.begun.id;
    run->agent_id = cmd.out.begun.agent_id;
    return ok;
}

static bool read_source(struct run *run, struct err *e)
{
    bool found;

    if (!store_read_fork_source(run->r, &run->job->source, &run->arena, &run->source, &found, e))
        return false;
    return found || err_set(e, ERR_NOT_FOUND, "no such execution");
}

static bool copy_rows(struct run *run, struct err *e)
{
    return read_source(run, e) && each_event(run, survey, e) && copy_steps(run, e) &&
           each_event(run, copy_event, e) && copy_checkpoints(run, e) && copy_resources(run, e);
}

static bool finish(struct run *run, struct err *e)
{
    struct command cmd = {.type = COMMAND_FORK_FINISH};
    const struct fork_job *job = run->job;
    const struct fork_source *source = &run->source;
    struct fork_copied copied = fork_copy_result(run->copy);
    bool own = str_present(job->policy_bundle);
    size_t written;

    if (!write_checkpoints(run, &written, e))
        return false;
    cmd.in.fork_finish = (struct fork_finish){
        .last = next_part(run),
        .source = job->source,
        .at_seq = job->at_seq,
        .agent_id = run->agent_id,
        .session = job->session,
        .created_by = job->created_by,
        .input = source->input,
        .on_behalf_of = source->on_behalf_of,
        .policy_bundle = own ? job->policy_bundle : source->policy_bundle,
        .policy_hash = own ? job->policy_hash : source->policy_hash,
        .next_seq = copied.next_seq,
        .tokens = copied.tokens,
        .indeterminate = copied.indeterminate,
        .resources = copied.resources,
        .n_resources = copied.n_resources,
        .checkpoints = copied.checkpoints + written,
        .n_checkpoints = copied.n_checkpoints - written,
        .n_checkpoints_before = written,
        .restoration = copied.restoration,
    };
    cmd.bytes = run->bodies.n + source->input.n + cmd.in.fork_finish.policy_bundle.n;
    FAULT("fork.finish.before");
    if (run_command(run, &cmd, e))
        return true;
    run->job->unknown = cmd.unknown;
    return false;
}

/* Also when the engine stops: the pin would hold the source until the next kernel finds it. */
static void abandon(struct run *run)
{
    struct command cmd = {.type = COMMAND_FORK_ABANDON, .arena = &run->arena};

    cmd.in.fork_abandon = (struct fork_abandon){run->job->id, true};
    engine_run(run->en, &cmd);
}

static bool make(struct run *run, struct err *e)
{
    bool pinned;

    if (!begin(run, &pinned, e)) {
        if (pinned)
            abandon(run);
        return false;
    }
    FAULT("fork.begun");
    run->copy = fork_copy_new(&run->job->id, run->job->at_seq);
    if (copy_rows(run, e) && finish(run, e))
        return true;
    if (!run->job->unknown)
        abandon(run);
    return false;
}

void fork_run(struct engine *en, struct store_reader *r, struct fork_job *job,
              const atomic_bool *stopping)
{
    struct run run = {.en = en, .r = r, .job = job, .stopping = stopping};

    job->unknown = false;
    job->ok = make(&run, &job->err);
    if (!job->ok && !job->unknown)
        job->err.details[0] = '\0'; /* whatever became of a part, nothing will be seen of it */
    fork_copy_free(run.copy);
    list_free(run.steps);
    list_free(run.events);
    buf_free(&run.bodies);
    arena_free(&run.page);
    arena_free(&run.arena);
}
