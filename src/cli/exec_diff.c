/* SPDX-License-Identifier: Apache-2.0
 * `rebuno exec diff`. Its exit codes are diff's: 0 nothing differs, 1 something does, 2 trouble. */
#include "cli/commands.h"
#include "cli/diff_view.h"
#include "cli/view.h"

enum { EXIT_SAME = EXIT_OK, EXIT_DIFFERENT = EXIT_FAILED, EXIT_TROUBLE = EXIT_USAGE };

static int begin(struct cli *c, struct run *r, size_t i)
{
    int code = visit_begin(c, &r->v);

    return code == EXIT_OK ? visit_find(c, &r->v, &VISIT_EXECUTION, cli_arg(c, i)) : code;
}

static void note_live(struct cli *c, const struct run *r)
{
    if (!view_is_final(r->status))
        cli_remark(c, "%.*s goes on: it is compared as far as it has got",
                   STR_ARG(view_short_id(r->v.id)));
}

static int show(struct cli *c, struct comparison *d)
{
    struct buf json = {0};
    struct err e;
    bool ok = true;

    if (cli_json(c)) {
        ok = diff_write(d, &json, &e);
        if (ok)
            cli_line(c, buf_str(&json));
        buf_free(&json);
    } else {
        diff_print(c, d);
        note_live(c, &d->a);
        note_live(c, &d->b);
    }
    if (!ok)
        return cli_fail(c, &e);
    return fflush(c->out) != 0 ? EXIT_FAILED : EXIT_OK; /* what is lost is no answer */
}

int cmd_exec_diff(struct cli *c)
{
    struct comparison d = {0};
    struct err e;
    int code = begin(c, &d.a, 0);

    if (code == EXIT_OK)
        code = begin(c, &d.b, 1);
    if (code == EXIT_OK && (!run_read(&d.a, &e) || !run_read(&d.b, &e)))
        code = cli_fail(c, &e);
    if (code == EXIT_OK) {
        align_runs(&d.a, &d.b, &d.steps);
        code = show(c, &d);
    }
    if (code != EXIT_OK)
        code = EXIT_TROUBLE;
    else
        code = comparison_same(&d) ? EXIT_SAME : EXIT_DIFFERENT;
    alignment_free(&d.steps);
    run_free(&d.a);
    run_free(&d.b);
    return code;
}
