/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/news.h"

#include "engine/clock.h"
#include "engine/executor.h"

#include <stdlib.h>

/* ---- before the commit ---- */

static void gather_touched(struct news *news, const struct changes *c)
{
    news->touched.n = 0;
    if (news->touched.cap < c->transitions.n) {
        news->touched.cap = c->transitions.n * 2;
        news->touched.at =
            xrealloc(news->touched.at, news->touched.cap * sizeof(news->touched.at[0]));
    }
    for (size_t i = 0; i < c->transitions.n; i++) {
        const struct execution *exec = c->transitions.at[i]->execution;

        if (exec->transition != c->transitions.at[i])
            continue; /* not the last of its execution: one signal is enough */
        news->touched.at[news->touched.n].id = exec->id;
        news->touched.at[news->touched.n++].ended = execution_status_is_terminal(exec->status);
    }
}

static void gather_approval(struct news *news, const struct approval *approval)
{
    switch (approval->status) {
    case APPROVAL_PENDING:
        if (approval->timeout_at < news->first_timeout)
            news->first_timeout = approval->timeout_at;
        return;
    case APPROVAL_GRANTED:
        news->granted++;
        return;
    case APPROVAL_DENIED:
        news->rejected++;
        return;
    case APPROVAL_EXPIRED:
        news->expired++;
        return;
    }
}

void news_gather(struct news *news, const struct working_set *ws)
{
    const struct changes *c = &ws->changes;

    gather_touched(news, c);
    news->dispatches = false;
    for (size_t i = 0; i < c->dispatches.n; i++) {
        const struct dispatch *d = c->dispatches.at[i]->dispatch;

        news->dispatches |= d != NULL && d->status == DISPATCH_QUEUED;
    }
    news->now_us = ws->now.wall_us;
    news->first_timeout = INT64_MAX;
    news->granted = news->rejected = news->expired = 0;
    for (size_t i = 0; i < c->approvals.n; i++)
        gather_approval(news, c->approvals.at[i]);
}

/* ---- counters ---- */

static void add(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* What came of a step that policy was asked about. One that a rate limit turned away or parked is
 * no decision yet: it is counted as such when it comes back. */
static void count_decision(struct engine_stats *st, const struct command *cmd)
{
    const struct step_answer *a = &cmd->out.step;
    bool refused = a->decision == DECISION_RATE_LIMITED;

    if (!a->decided && !a->parked && !refused)
        return;
    add(&st->decided_count, 1);
    add(&st->decided_ns, (uint64_t)cmd->decide_ns);
    add(&st->limit_refused, refused);
    add(&st->limit_parked, a->parked);
    add(&st->limit_passed, a->limit_passed);
    if (refused || a->parked)
        return;
    if (a->decision == DECISION_PROCEED)
        add(&st->allowed, 1);
    else
        add(a->decision == DECISION_BLOCKED ? &st->held : &st->denied, 1);
}

static void count_step(struct engine_stats *st, const struct command *cmd)
{
    add(&st->submitted[cmd->in.submit.kind], 1);
    add(cmd->out.step.decision == DECISION_REPLAY ? &st->replay_hit : &st->replay_miss, 1);
    count_decision(st, cmd);
}

static void count(struct engine_stats *st, const struct command *cmd)
{
    if (cmd->verdict != VERDICT_DONE)
        return;
    if (cmd->type == COMMAND_SUBMIT)
        count_step(st, cmd);
    else if (cmd->type == COMMAND_SETTLE)
        add(&st->usage_missing, cmd->out.step.usage_missing);
    else if (cmd->type == COMMAND_CREATE && !cmd->out.created.existing)
        add(&st->created, 1);
    else if (cmd->type == COMMAND_FORK_FINISH)
        add(&st->created, 1);
    else if (cmd->type == COMMAND_CANCEL)
        add(&st->cancelled, 1);
    else if (cmd->type == COMMAND_FINISH)
        add(cmd->in.finish.failed ? &st->failed : &st->completed, 1);
    else if (cmd->type == COMMAND_CLAIM && cmd->out.claimed.claimed)
        add(&st->claimed, 1);
    else if (cmd->type == COMMAND_DELIVERED)
        add(cmd->in.delivery.acked ? &st->acked : &st->delivery_failed, 1);
    else if (cmd->type == COMMAND_RECLAIM && cmd->out.reclaimed)
        add(&st->reclaimed, 1);
}

static void count_all(struct engine_stats *st, const struct news *news, struct command **cmds,
                      size_t n)
{
    for (size_t i = 0; i < n; i++)
        count(st, cmds[i]);
    add(&st->granted, news->granted);
    add(&st->rejected, news->rejected);
    add(&st->expired, news->expired);
}

/* ---- signals ---- */

/* The agent whose registration or bundle this command has changed; absent: none. */
static struct str changed_agent(const struct command *cmd)
{
    if (cmd->verdict != VERDICT_DONE)
        return STR_NONE;
    if (cmd->type == COMMAND_AGENT_REGISTER)
        return cmd->in.agent_register.id;
    if (cmd->type == COMMAND_AGENT_REMOVE)
        return cmd->in.agent_remove;
    if (cmd->type == COMMAND_POLICY_SET)
        return cmd->in.policy_set.agent_id;
    return STR_NONE;
}

static void tell_agents(struct engine *en, struct command **cmds, size_t n)
{
    const struct engine_signals *s = &en->signals;

    for (size_t i = 0; i < n; i++) {
        struct store_note note = {.kind = 'a', .text = changed_agent(cmds[i])};

        if (!str_present(note.text))
            continue;
        if (s->agent_changed != NULL)
            s->agent_changed(s->ctx, note.text);
        store_notify(en->store, &note, 1);
    }
}

static void tell_other_kernels(struct engine *en, struct news *news)
{
    struct store_note *notes;
    size_t n = 0;

    if (news->notes.cap < news->touched.n + 1) {
        news->notes.cap = news->touched.cap + 1;
        news->notes.at = xrealloc(news->notes.at, news->notes.cap * sizeof(news->notes.at[0]));
    }
    notes = news->notes.at;
    if (news->dispatches)
        notes[n++] = (struct store_note){.kind = 'd'};
    for (size_t i = 0; i < news->touched.n; i++)
        notes[n++] = (struct store_note){.kind = 'e', .id = news->touched.at[i].id};
    if (n > 0)
        store_notify(en->store, notes, n);
}

void news_tell(struct news *news, struct engine *en, struct command **cmds, size_t n)
{
    const struct engine_signals *s = &en->signals;

    count_all(&en->stats, news, cmds, n);
    if (news->dispatches && s->dispatches_queued != NULL)
        s->dispatches_queued(s->ctx);
    for (size_t i = 0; i < news->touched.n; i++)
        if (s->events != NULL)
            s->events(s->ctx, &news->touched.at[i].id, news->touched.at[i].ended);
    if (!store_is_sqlite(en->store))
        tell_other_kernels(en, news);
    if (news->first_timeout != INT64_MAX)
        clock_approval_opened(en, news->first_timeout, news->now_us);
    tell_agents(en, cmds, n);
}

void news_free(struct news *news)
{
    free(news->touched.at);
    free(news->notes.at);
}
