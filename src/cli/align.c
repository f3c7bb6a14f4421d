/* SPDX-License-Identifier: Apache-2.0
 * Alignment. A call happens once in a run at most, so the steps that both runs made in the same
 * order are a longest increasing sequence of places, found in n log n. Between two of those, calls
 * of the same kind and target are taken for the same step with other arguments. */
#include "cli/align.h"

#include <stdlib.h>

enum { LOOKAHEAD = 64 }; /* steps in which such a call is looked for */
#define NOWHERE SIZE_MAX

struct aligner {
    const struct run *a, *b;
    size_t *place;   /* of a's steps: the index of b's; NOWHERE: it has no such call */
    size_t *kept;    /* of a's steps: the same, if both have it in order */
    bool *elsewhere; /* of b's steps: a has such a call */
    size_t i, j;     /* what comes next */
    struct alignment *out;
};

/* ---- what both have in order ---- */

/* The first of the n ends (places of the chains' last steps, ascending) that is not below. */
static size_t chain_for(const size_t *place, const size_t *ends, size_t n, size_t value)
{
    size_t from = 0, to = n;

    while (from < to) {
        size_t middle = from + (to - from) / 2;

        if (place[ends[middle]] < value)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static void keep_longest(struct aligner *al)
{
    size_t n = al->a->n, longest = 0;
    size_t *ends = xzalloc((n + 1) * sizeof *ends), *before = xzalloc((n + 1) * sizeof *before);

    for (size_t i = 0; i < n; i++) {
        al->kept[i] = NOWHERE;
        if (al->place[i] == NOWHERE)
            continue;
        size_t chain = chain_for(al->place, ends, longest, al->place[i]);
        before[i] = chain > 0 ? ends[chain - 1] : NOWHERE;
        ends[chain] = i;
        if (chain == longest)
            longest++;
    }
    for (size_t i = longest > 0 ? ends[longest - 1] : NOWHERE; i != NOWHERE; i = before[i])
        al->kept[i] = al->place[i];
    free(ends);
    free(before);
}

static void find_counterparts(struct aligner *al)
{
    for (size_t i = 0; i < al->a->n; i++) {
        const struct run_step *other = run_counterpart(al->b, al->a->steps[i]);

        al->place[i] = other == NULL ? NOWHERE : other->place - 1;
        if (other != NULL)
            al->elsewhere[other->place - 1] = true;
    }
}

/* ---- pairs ---- */

static bool same_payload(const struct run_payload *x, const struct run_payload *y)
{
    return x->present == y->present && (!x->present || hash_eq(&x->hash, &y->hash));
}

static unsigned differences(const struct run_step *a, const struct run_step *b)
{
    unsigned found = 0;

    if (!hash_eq(&a->args_hash, &b->args_hash))
        found |= DIFFERS_ARGS;
    if (a->decision != b->decision || !str_eq(a->rule, b->rule))
        found |= DIFFERS_DECISION;
    if (!str_eq(a->status, b->status))
        found |= DIFFERS_STATUS;
    if (!same_payload(&a->result, &b->result))
        found |= DIFFERS_RESULT;
    if (!same_payload(&a->error, &b->error))
        found |= DIFFERS_ERROR;
    return found;
}

static void add_pair(struct aligner *al, enum pair_kind kind, const struct run_step *a,
                     const struct run_step *b)
{
    struct alignment *out = al->out;
    unsigned differs = a != NULL && b != NULL ? differences(a, b) : 0;

    if (kind == PAIR_SAME && differs != 0)
        kind = PAIR_CHANGED;
    if (kind == PAIR_MOVED)
        differs |= DIFFERS_ORDER;
    if (kind == PAIR_SAME && out->same_before == out->n)
        out->same_before++;
    out->counts[kind]++;
    out->pairs[out->n++] = (struct pair){kind, a, b, differs};
}

/* b's steps before `to` that nothing of a has been paired with. */
static void add_rest_of_b(struct aligner *al, size_t to)
{
    for (; al->j < to; al->j++) {
        if (!al->elsewhere[al->j])
            add_pair(al, PAIR_ONLY_B, NULL, al->b->steps[al->j]);
    }
}

/* NOWHERE: none nearby. */
static size_t find_similar(const struct aligner *al, const struct run_step *a, size_t to)
{
    size_t last = to - al->j > LOOKAHEAD ? al->j + LOOKAHEAD : to;

    for (size_t j = al->j; j < last; j++) {
        const struct run_step *b = al->b->steps[j];

        if (!al->elsewhere[j] && str_eq(a->kind, b->kind) && str_eq(a->target, b->target) &&
            !hash_eq(&a->args_hash, &b->args_hash))
            return j;
    }
    return NOWHERE;
}

/* What stands before the next step that both have. */
static void add_gap(struct aligner *al, size_t to_a, size_t to_b)
{
    for (; al->i < to_a; al->i++) {
        const struct run_step *a = al->a->steps[al->i];
        size_t place = al->place[al->i];

        if (place != NOWHERE) {
            add_pair(al, PAIR_MOVED, a, al->b->steps[place]);
            continue;
        }
        size_t similar = find_similar(al, a, to_b);
        if (similar == NOWHERE) {
            add_pair(al, PAIR_ONLY_A, a, NULL);
        } else {
            add_rest_of_b(al, similar);
            add_pair(al, PAIR_ARGS, a, al->b->steps[similar]);
            al->j = similar + 1;
        }
    }
    add_rest_of_b(al, to_b);
}

void align_runs(const struct run *a, const struct run *b, struct alignment *out)
{
    struct aligner al = {.a = a, .b = b, .out = out};

    *out = (struct alignment){.pairs = xzalloc((a->n + b->n + 1) * sizeof(struct pair))};
    al.place = xzalloc((a->n + 1) * sizeof *al.place);
    al.kept = xzalloc((a->n + 1) * sizeof *al.kept);
    al.elsewhere = xzalloc((b->n + 1) * sizeof *al.elsewhere);
    find_counterparts(&al);
    keep_longest(&al);
    for (size_t i = 0; i < a->n; i++) {
        if (al.kept[i] == NOWHERE)
            continue;
        add_gap(&al, i, al.kept[i]);
        add_pair(&al, PAIR_SAME, a->steps[al.i], b->steps[al.j]);
        al.i++;
        al.j++;
    }
    add_gap(&al, a->n, b->n);
    free(al.place);
    free(al.kept);
    free(al.elsewhere);
}

void alignment_free(struct alignment *al)
{
    free(al->pairs);
    *al = (struct alignment){0};
}
