/* SPDX-License-Identifier: Apache-2.0
 * SQLite's file: it has one kernel by whatever name it is opened, and a kernel whose file was taken
 * away says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/store_fixture.h"

static void path_of(const struct fixture *f, const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", f->folder, name);
}

/* What another process is told that opens the fixture's folder under this name. */
static enum err_code opened_elsewhere(const struct fixture *f, const char *name)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        char url[256];
        struct store_options opt = {.url = url};
        struct err e = {0};

        snprintf(url, sizeof(url), "sqlite://%s/%s", f->folder, name);
        _exit(store_open(&opt, &e) == NULL ? (int)e.code : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return (enum err_code)WEXITSTATUS(status);
}

/* In this process: a child that was forked beside threads should start none. */
static void assert_opens(const struct fixture *f, const char *name)
{
    char url[256];
    struct store_options opt = {.url = url};
    struct err e = {0};
    struct store *s;

    snprintf(url, sizeof(url), "sqlite://%s/%s", f->folder, name);
    s = store_open(&opt, &e);
    if (s == NULL)
        fail_msg("%s", e.message);
    store_close(s);
}

static void another_name_is_the_same_file(void **state)
{
    struct fixture f;
    char file[128], path[128];

    (void)state;
    fixture_open(&f, FIXTURE_SQLITE);
    path_of(&f, "test.db", file, sizeof(file));
    path_of(&f, "symbolic.db", path, sizeof(path));
    assert_int_equal(symlink("test.db", path), 0);
    path_of(&f, "twice.db", path, sizeof(path));
    assert_int_equal(symlink("symbolic.db", path), 0);
    path_of(&f, "hard.db", path, sizeof(path));
    assert_int_equal(link(file, path), 0);
    path_of(&f, "here", path, sizeof(path));
    assert_int_equal(symlink(".", path), 0);
    assert_int_equal(opened_elsewhere(&f, "symbolic.db"), ERR_CONFLICT);
    assert_int_equal(opened_elsewhere(&f, "twice.db"), ERR_CONFLICT);
    assert_int_equal(opened_elsewhere(&f, "hard.db"), ERR_CONFLICT);
    assert_int_equal(opened_elsewhere(&f, "here/test.db"), ERR_CONFLICT);
    assert_opens(&f, "other.db");
    assert_int_equal(unlink(path), 0);
    fixture_close(&f);
}

static void without_its_lock_file(void **state)
{
    struct fixture f;
    char path[128];

    (void)state;
    fixture_open(&f, FIXTURE_SQLITE);
    path_of(&f, "test.db.lock", path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(opened_elsewhere(&f, "test.db"), ERR_CONFLICT);
    fixture_reopen(&f);
    fixture_close(&f);
}

static void a_link_to_a_file_that_is_not_there_yet(void **state)
{
    struct fixture f;
    char path[128];
    struct stat st;

    (void)state;
    fixture_open(&f, FIXTURE_SQLITE);
    path_of(&f, "link.db", path, sizeof(path));
    assert_int_equal(symlink("new.db", path), 0);
    assert_opens(&f, "link.db");
    path_of(&f, "new.db", path, sizeof(path));
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 0);
    fixture_close(&f);
}

/* ---- a file that is taken away ---- */

static struct uuid new_execution(struct fixture *f)
{
    struct uuid id;

    fixture_load(f);
    id = fixture_execution(f, "a")->id;
    fixture_commit(f);
    return id;
}

/* Writes until it is refused; how long that took. */
static int64_t refused_after(struct fixture *f, struct err *e)
{
    struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    int64_t begin = clock_mono_us();

    for (;;) {
        bool unknown, ok = store_load(f->w, &f->ws, e);

        if (ok) {
            (void)fixture_execution(f, "a");
            ok = store_commit(f->w, &f->ws, &unknown, e);
        }
        if (!ok) {
            store_abandon(f->w);
            ws_clear(&f->ws);
            return clock_mono_us() - begin;
        }
        ws_end_group(&f->ws);
        if (clock_mono_us() - begin > 10 * US_PER_S)
            fail_msg("writes go on into a file that is gone");
        nanosleep(&pause, NULL);
    }
}

static void a_file_that_is_gone_takes_no_writes(void **state)
{
    struct fixture f;
    struct uuid id, *ids;
    struct err e = {0};
    char file[128], away[128];
    struct execution_view v;
    bool found;
    size_t n;
    FILE *other;

    (void)state;
    fixture_open(&f, FIXTURE_SQLITE);
    id = new_execution(&f);
    path_of(&f, "test.db", file, sizeof(file));
    path_of(&f, "away.db", away, sizeof(away));
    assert_int_equal(rename(file, away), 0);
    assert_in_range(refused_after(&f, &e), 0, 3 * US_PER_S);
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_non_null(strstr(e.message, "gone"));
    assert_non_null(strstr(e.message, file));
    assert_false(store_writer_recover(f.w, &e));
    assert_false(store_expired_leases(f.w, &f.ws, 1, &f.arena, &ids, &n, &e));
    assert_true(store_read_execution(f.r, &id, &f.arena, &v, &found, &e)); /* reads go on */
    assert_int_equal(access(file, F_OK), -1); /* and nothing made a new one */
    other = fopen(file, "w");
    assert_non_null(other);
    fclose(other);
    assert_false(store_writer_recover(f.w, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_int_equal(rename(away, file), 0);
    assert_true(store_writer_recover(f.w, &e));
    assert_non_null(fixture_get(&f, &id));
    fixture_commit(&f);
    id = new_execution(&f);
    fixture_reopen(&f);
    assert_non_null(fixture_get(&f, &id));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_name_is_the_same_file),
        cmocka_unit_test(without_its_lock_file),
        cmocka_unit_test(a_link_to_a_file_that_is_not_there_yet),
        cmocka_unit_test(a_file_that_is_gone_takes_no_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
