/* SPDX-License-Identifier: Apache-2.0
 * The judging model's question and answer. */
#include "policy/judgement.h"

#include <stdlib.h>

void judgement_question(struct buf *out, const struct policy_input *in, const struct judge *judge)
{
    struct json_writer w = {.out = out};

    jw_open(&w, '{');
    jw_member_str(&w, "agent_id", in->agent_id);
    jw_member_str(&w, "target", in->target);
    jw_key(&w, "arguments");
    jw_raw(&w, in->args);
    jw_member_str(&w, "instructions",
                  str_present(judge->instructions) ? judge->instructions : STR(""));
    jw_close(&w, '}');
}

/* A score of something else than the three choices: then nobody knows what the others mean. */
static bool only_choices(struct str scores, struct arena *a)
{
    struct json_walk walk = {0};
    struct json_member m;
    enum policy_action action;

    while (json_next_member(scores, &walk, a, &m))
        if (!policy_action_parse(m.key, &action) || action == POLICY_JUDGE)
            return false;
    return true;
}

/* A probability; a choice that is not named has none. */
static bool read_score(struct str scores, enum policy_action action, struct arena *a, double *out)
{
    struct str value = json_get(scores, policy_action_name(action), a);

    *out = 0;
    if (!str_present(value))
        return true;
    if (json_type_of(value) != JSON_NUMBER)
        return false;
    *out = strtod(arena_str(a, value).p, NULL);
    return *out >= 0 && *out <= 1;
}

static enum policy_action read_scores(struct str scores, const struct judge *judge, struct arena *a)
{
    static const enum policy_action strictest_first[] = {POLICY_DENY, POLICY_REQUIRE_APPROVAL,
                                                         POLICY_ALLOW};
    enum policy_action top = judge->fallback;
    double best = 0;

    if (json_type_of(scores) != JSON_OBJECT || !only_choices(scores, a))
        return judge->fallback;
    for (size_t i = 0; i < COUNT(strictest_first); i++) {
        double score;
        if (!read_score(scores, strictest_first[i], a, &score))
            return judge->fallback;
        if (score > best) {
            best = score;
            top = strictest_first[i];
        }
    }
    return best >= judge->threshold ? top : judge->fallback;
}

enum policy_action judgement_read(struct str answer, const struct judge *judge)
{
    enum policy_action action = judge->fallback;
    struct buf canonical = {0};
    struct arena a = {0};
    struct err e;

    /* Its canonical form: of two equal keys, nobody knows which one counts. */
    if (str_present(answer) && canonical_json(answer, &canonical, &e) &&
        json_type_of(buf_str(&canonical)) == JSON_OBJECT)
        action = read_scores(json_get(buf_str(&canonical), STR("scores"), &a), judge, &a);
    arena_free(&a);
    buf_free(&canonical);
    return action;
}
