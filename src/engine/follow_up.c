/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/follow_up.h"

#include "engine/executor.h"

#include <stdlib.h>

struct follow_up {
    struct command cmd; /* first */
    struct engine *engine;
    struct command *first; /* whose answer waits */
    char session[];
};

static void admitted(struct command *cmd)
{
    struct follow_up *f = (struct follow_up *)cmd;
    struct command *first = f->first;

    engine_answered(f->engine);
    free(f);
    first->done(first);
}

void follow_up_admit(struct engine *en, struct command *first, struct str session)
{
    struct follow_up *f = xzalloc(sizeof(*f) + session.n);

    memcpy(f->session, session.p, session.n);
    f->cmd.type = COMMAND_ADMIT;
    f->cmd.in.admit = str_make(f->session, session.n);
    f->cmd.done = admitted;
    f->engine = en;
    f->first = first;
    engine_submit(en, &f->cmd);
}
