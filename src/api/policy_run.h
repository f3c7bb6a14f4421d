/* SPDX-License-Identifier: Apache-2.0
 * A test of a bundle: cases, then recorded steps, run through it, with results that leave as they
 * come. Private to api/. */
#ifndef API_POLICY_RUN_H
#define API_POLICY_RUN_H

#include "api/recorded.h"
#include "api/request.h"
#include "policy/tester.h"

struct policy_run {
    struct policy *tested; /* its reference is taken over */
    struct policy *own;  /* likewise: the agent's own bundle, NULL: none, or it does not compile */
    struct str agent_id; /* copied */
    struct arena arena;  /* taken over: of the cases */
    struct policy_case *cases;
    size_t n_cases;
    struct recorded *recorded; /* taken over; NULL: none */
};

/* Gives the request away. */
void policy_run_start(struct request *rq, const struct policy_run *run, struct store_reader *r);

#endif
