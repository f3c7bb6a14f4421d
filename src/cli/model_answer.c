/* SPDX-License-Identifier: Apache-2.0
 * Answers of models that are none. */
#include "cli/model_answer.h"

#include "cli/text.h"
#include "cli/view.h"

enum { FAILURE_MIN = 400, BODY_COLUMNS = 120, BODY_READ = 4 * BODY_COLUMNS };

static struct str beginning(struct str body, struct arena *a)
{
    struct buf clean = {0}, cut = {0};
    struct err ignored;

    if (json_check(body, &ignored))
        return view_json_short(body, BODY_COLUMNS, a);
    text_clean(&clean, str_slice(body, 0, body.n < BODY_READ ? body.n : BODY_READ), TEXT_ONE_LINE);
    text_fit(&cut, buf_str(&clean), BODY_COLUMNS);
    struct str out = arena_str(a, buf_str(&cut));
    buf_free(&clean);
    buf_free(&cut);
    return out;
}

int64_t model_answer_failure(struct str result, struct str *body, struct arena *a)
{
    struct str status, headers, text, encoding;
    const struct view_field fields[] = {{"status", false, &status},
                                        {"headers", false, &headers},
                                        {"body", true, &text},
                                        {"encoding", true, &encoding}};
    int64_t code = 0;

    if (body != NULL)
        *body = STR_NONE;
    view_read(result, fields, COUNT(fields), a);
    if (!str_present(status) || !str_present(headers) || !str_present(text) ||
        !json_int64(status, &code) || code < FAILURE_MIN)
        return 0;
    if (body != NULL && !str_present(encoding))
        *body = beginning(text, a);
    return code;
}

int64_t model_answer_fetch(struct visit *v, struct client *client, struct str step_id)
{
    struct buf answer = {0}, path = {0};
    struct arena a = {0};
    struct str result = STR_NONE;
    const struct view_field fields[] = {{"result", false, &result}};
    struct err ignored;
    int64_t code = 0;

    buf_add_z(&path, visit_path(v, "/steps/"));
    client_escape(&path, step_id);
    buf_add_byte(&path, '\0');
    if (client_get(client, path.p, &answer, &ignored)) {
        view_read(buf_str(&answer), fields, COUNT(fields), &a);
        code = model_answer_failure(result, NULL, &a);
    }
    buf_free(&answer);
    buf_free(&path);
    arena_free(&a);
    return code;
}
