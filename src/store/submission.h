/* SPDX-License-Identifier: Apache-2.0
 * What the SQLite store remembers of counted submissions. There they are appended and never looked
 * up: this process is the only one that counts, and the counts of leased executions live in the
 * working set. Those that were there before the set was (at start, after an error) are read in one
 * pass over the table and handed out as their executions load. Those of a delivery that has ended
 * are looked for when one of its calls asks, which only agents that lived through a restart do. */
#ifndef STORE_SUBMISSION_H
#define STORE_SUBMISSION_H

#include "store/internal.h"

struct past_submissions;

void past_submissions_free(struct past_submissions *past); /* NULL is fine */

bool sqlite_load_submissions(struct load *ld, struct err *e);
void sqlite_put_submissions(struct load *ld);
void sqlite_apply_submissions(struct apply *ap);
bool sqlite_tidy_submissions(struct store_writer *w, bool *more, struct err *e);

bool postgres_load_submissions(struct load *ld, struct err *e);
void postgres_put_submissions(struct load *ld);
void postgres_apply_submissions(struct apply *ap);

#endif
