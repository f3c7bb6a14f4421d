/* SPDX-License-Identifier: Apache-2.0
 * SQLite on a disk that fails: full, refusing writes, refusing to sync. Nothing that failed is
 * acknowledged, nothing is tried again on the same handle, and once the disk is well the store is
 * too. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/store_fixture.h"

/* SQLite's syncs come here first. */
static atomic_bool syncs_fail;
int fdatasync(int fd)
{
    if (atomic_load(&syncs_fail)) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, fd);
}

static void open_at(struct fixture *f, const char *folder)
{
    struct store_options opt;
    struct err e = {0};

    *f = (struct fixture){.kind = FIXTURE_SQLITE};
    snprintf(f->url, sizeof(f->url), "sqlite://%s/test.db", folder);
    opt = (struct store_options){.url = f->url};
    f->store = store_open(&opt, &e);
    assert_non_null(f->store);
    f->w = store_writer_open(f->store, &e);
    f->r = store_reader_open(f->store, &e);
    ws_init(&f->ws, &f->settings, &f->ids, &f->random);
    f->ws.keep_leased = true;
}

static void close_all(struct fixture *f)
{
    ws_free(&f->ws);
    store_writer_close(f->w);
    store_reader_close(f->r);
    store_close(f->store);
    arena_free(&f->arena);
}

enum { EXECUTIONS_MAX = 200 };
static char payload[100 * 1024];

/* Writes executions with large inputs until a commit fails; their ids, the failed one last. */
static size_t write_until_it_fails(struct fixture *f, struct uuid *ids, bool *unknown,
                                   struct err *e)
{
    for (size_t n = 0; n < EXECUTIONS_MAX; n++) {
        struct execution *x;

        fixture_load(f);
        x = fixture_execution(f, "a");
        x->input = str_make(payload, sizeof(payload));
        ids[n] = x->id;
        if (!store_commit(f->w, &f->ws, unknown, e)) {
            ws_clear(&f->ws);
            return n;
        }
        ws_end_group(&f->ws);
    }
    fail_msg("the disk does not fail");
    return 0;
}

static void check_unusable(struct fixture *f)
{
    struct err e = {0};
    bool unknown;

    assert_false(store_load(f->w, &f->ws, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    store_abandon(f->w);
    (void)fixture_execution(f, "a");
    assert_false(store_commit(f->w, &f->ws, &unknown, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_false(unknown);
    ws_clear(&f->ws);
}

static void check_rows(struct fixture *f, const struct uuid *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct execution_view v;
        struct err e = {0};
        bool found;

        assert_non_null(fixture_get(f, &ids[i]));
        assert_true(store_read_execution(f->r, &ids[i], &f->arena, &v, &found, &e));
        assert_true(found);
        assert_int_equal(v.input.n, sizeof(payload));
        arena_reset(&f->arena);
    }
    assert_null(fixture_get(f, &ids[n])); /* the one that failed */
    fixture_commit(f);
    fixture_load(f);
    struct uuid id = fixture_execution(f, "a")->id;
    fixture_commit(f);
    assert_non_null(fixture_get(f, &id));
    fixture_commit(f);
}

static void full_disk(void **state)
{
    char folder[] = "/tmp/store-test-full-XXXXXX", ballast[64];
    struct fixture f = {0};
    struct uuid ids[EXECUTIONS_MAX];
    struct err e = {0};
    bool unknown;
    size_t n;
    int fd;

    (void)state;
    assert_non_null(mkdtemp(folder));
    if (geteuid() != 0 || mount("tmpfs", folder, "tmpfs", 0, "size=8m") != 0) {
        rmdir(folder);
        skip();
    }
    snprintf(ballast, sizeof(ballast), "%s/ballast", folder);
    fd = open(ballast, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(posix_fallocate(fd, 0, 4 * 1024 * 1024), 0);
    close(fd);
    open_at(&f, folder);
    n = write_until_it_fails(&f, ids, &unknown, &e);
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_non_null(strstr(e.message, "full"));
    assert_false(unknown);
    assert_true(n > 3);
    check_unusable(&f);
    assert_int_equal(unlink(ballast), 0);
    assert_true(store_writer_recover(f.w, &e));
    check_rows(&f, ids, n);
    close_all(&f);
    open_at(&f, folder);
    check_rows(&f, ids, n);
    close_all(&f);
    assert_int_equal(umount(folder), 0);
    rmdir(folder);
}

static void writes_that_fail(void **state)
{
    struct rlimit before, small;
    struct fixture f;
    struct uuid ids[EXECUTIONS_MAX];
    struct err e = {0};
    bool unknown;
    size_t n;

    (void)state;
    fixture_open(&f, FIXTURE_SQLITE);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){1024 * 1024, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    n = write_until_it_fails(&f, ids, &unknown, &e);
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_false(unknown);
    check_unusable(&f);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(store_writer_recover(f.w, &e));
    check_rows(&f, ids, n);
    fixture_reopen(&f);
    check_rows(&f, ids, n);
    fixture_close(&f);
}

static void syncs_that_fail(void **state)
{
    struct fixture f;
    struct uuid ids[4];
    struct err e = {0};
    bool unknown;

    (void)state;
    fixture_open(&f, FIXTURE_SQLITE);
    for (size_t i = 0; i < 3; i++) {
        fixture_load(&f);
        ids[i] = fixture_execution(&f, "a")->id;
        ws_execution(&f.ws, &ids[i])->input = str_make(payload, sizeof(payload));
        fixture_commit(&f);
    }
    fixture_load(&f);
    ids[3] = fixture_execution(&f, "a")->id;
    atomic_store(&syncs_fail, true);
    assert_false(store_commit(f.w, &f.ws, &unknown, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_true(
        unknown); /* the pages may be on the disk: only a later write decides that they are not */
    ws_clear(&f.ws);
    check_unusable(&f);
    assert_false(store_writer_recover(f.w, &e));
    check_unusable(&f);
    atomic_store(&syncs_fail, false);
    assert_true(store_writer_recover(f.w, &e));
    check_rows(&f, ids, 3);
    fixture_reopen(&f);
    check_rows(&f, ids, 3);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_disk),
        cmocka_unit_test(writes_that_fail),
        cmocka_unit_test(syncs_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
