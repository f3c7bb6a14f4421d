/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#ifdef REBUNO_FAULTS

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"

/* What the environment asks for. Constant once it is read, but for the count. */
static struct {
    struct str name; /* absent: nothing */
    int64_t nth;
    bool fail;
    atomic_int_fast64_t passed;
} chosen;

/* The next part of a text with colons. */
static struct str cut(struct str *rest)
{
    const char *colon = rest->n == 0 ? NULL : memchr(rest->p, ':', rest->n);
    size_t n = colon == NULL ? rest->n : (size_t)(colon - rest->p);
    struct str part = str_make(rest->p, n);

    *rest = str_slice(*rest, colon == NULL ? n : n + 1, rest->n);
    return part;
}

static void choose(void)
{
    struct str rest = str_of(getenv("REBUNO_FAULT")), part;

    chosen.nth = 1;
    if (str_empty(rest))
        return;
    chosen.name = cut(&rest);
    part = cut(&rest);
    if (!str_empty(part) && str_to_int64(part, &chosen.nth))
        part = cut(&rest);
    chosen.fail = str_eq(part, STR("fail"));
    ASSERT(chosen.fail || str_empty(part)); /* a test that asks for nothing must not pass */
    log_event(LOG_WARN, "fault.armed", {"point", chosen.name}, {"nth", log_int(chosen.nth)});
}

static bool is_now(const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, choose);
    return str_eq(chosen.name, str_of(name)) &&
           atomic_fetch_add(&chosen.passed, 1) + 1 == chosen.nth;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

void fault_pass(const char *name)
{
    if (is_now(name))
        die();
}

bool fault_pass_or_fail(const char *name)
{
    if (!is_now(name))
        return false;
    if (!chosen.fail)
        die();
    log_event(LOG_WARN, "fault.failing", {"point", chosen.name});
    return true;
}

#endif
