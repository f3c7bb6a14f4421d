/* SPDX-License-Identifier: Apache-2.0
 * What the load generator can do. Each mode writes members of one JSON object. */
#ifndef BENCH_MODES_H
#define BENCH_MODES_H

#include "lib/drive.h"

/* On executions: */
void mode_record(struct fleet *f,
                 struct json_writer *w); /* latency and paced too: one connection, a rate */
void mode_replay(struct fleet *f, struct json_writer *w);
void mode_long(struct fleet *f, struct json_writer *w);
void mode_talk(struct fleet *f, struct json_writer *w);
/* On connections: */
void mode_dispatch(struct fleet *f, struct json_writer *w);
void mode_memory(struct fleet *f, struct json_writer *w);
void mode_idle(struct fleet *f, struct json_writer *w);
void mode_sse(struct fleet *f, struct json_writer *w);
/* On policies: */
void mode_heavy(struct fleet *f, struct json_writer *w);
void mode_parked(struct fleet *f, struct json_writer *w);

#endif
