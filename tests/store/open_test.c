/* SPDX-License-Identifier: Apache-2.0
 * Opening: addresses, migrations, who else is there, what kernels tell each other. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/postgres_cluster.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

static struct store *open_url(const char *url, struct err *e)
{
    struct store_options opt = {.url = url};

    *e = (struct err){0};
    return store_open(&opt, e);
}

static void assert_refused(const char *url, enum err_code code, const char *says)
{
    struct err e;

    assert_null(open_url(url, &e));
    assert_int_equal(e.code, code);
    if (strstr(e.message, says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", e.message, says);
}

static void addresses(void **state)
{
    (void)state;
    assert_refused("", ERR_VALIDATION, "sqlite://");
    assert_refused("mysql://x", ERR_VALIDATION, "postgres://");
    assert_refused("sqlite://", ERR_VALIDATION, "sqlite://");
    assert_refused("/just/a/path", ERR_VALIDATION, "sqlite://");
    assert_refused("sqlite:///no/such/folder/x.db", ERR_UNAVAILABLE, "/no/such/folder/x.db");
    assert_refused("sqlite:///proc/x.db", ERR_UNAVAILABLE, "/proc/x.db");
    assert_refused("postgres://nobody@/x?host=/no/such/folder", ERR_UNAVAILABLE, "cannot connect");
    assert_refused("postgres://nobody:topsecret@127.0.0.1:1/x", ERR_UNAVAILABLE, "cannot connect");
}

static void a_password_is_not_told(void **state)
{
    struct err e;

    (void)state;
    assert_null(open_url("postgres://nobody:topsecret@127.0.0.1:1/x", &e));
    assert_null(strstr(e.message, "topsecret"));
}

static void relative_path(void **state)
{
    char folder[] = "/tmp/store-test-XXXXXX", before[1024];
    struct err e;
    struct store *s;
    struct stat st;

    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(folder), 0);
    s = open_url("sqlite://here.db", &e);
    assert_non_null(s);
    store_close(s);
    assert_int_equal(stat("here.db", &st), 0);
    assert_int_equal(stat("here.db-wal", &st), -1); /* closed in order: the log is in the file */
    unlink("here.db");
    unlink("here.db.lock");
    assert_int_equal(chdir(before), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- migrations ---- */

static void opened_again(void **state)
{
    struct fixture f;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_reopen(&f);
    fixture_reopen(&f);
    ws_need_agent(&f.ws, STR("a"), false);
    fixture_load(&f);
    assert_non_null(ws_agent(&f.ws, STR("a")));
    fixture_close(&f);
}

static void refuse_after(void **state, const char *sql, const char *says)
{
    struct fixture f;
    struct err e;

    fixture_open(&f, *(enum fixture_kind *)*state);
    ws_free(&f.ws);
    store_writer_close(f.w);
    store_reader_close(f.r);
    store_close(f.store);
    (void)fixture_sql(&f, sql);
    assert_null(open_url(f.url, &e));
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.message, says));
    (void)fixture_sql(
        &f, "UPDATE schema_migrations SET checksum = substr(checksum, 2) WHERE checksum LIKE 'x%'");
    (void)fixture_sql(&f, "DELETE FROM schema_migrations WHERE number > 999");
    f.store = open_url(f.url, &e);
    assert_non_null(f.store);
    f.w = store_writer_open(f.store, &e);
    f.r = store_reader_open(f.store, &e);
    fixture_close(&f);
}

static void newer_database_is_refused(void **state)
{
    refuse_after(state, "INSERT INTO schema_migrations VALUES (9999, '9999_future', 'x', 1)",
                 "9999_future");
}

static void another_build_is_refused(void **state)
{
    refuse_after(state, "UPDATE schema_migrations SET checksum = 'x' || checksum WHERE number = 1",
                 "0001_initial");
}

struct start {
    const char *url;
    struct store *store;
    struct err e;
};

static void *start_one(void *arg)
{
    struct start *start = arg;

    start->store = open_url(start->url, &start->e);
    return NULL;
}

static void five_kernels_start_at_once(void **state)
{
    enum { KERNELS = 5 };
    char url[256];
    struct start starts[KERNELS];
    pthread_t threads[KERNELS];
    size_t alone = 0;

    (void)state;
    postgres_cluster_database(url, sizeof(url));
    for (size_t i = 0; i < KERNELS; i++) {
        starts[i] = (struct start){.url = url};
        assert_int_equal(pthread_create(&threads[i], NULL, start_one, &starts[i]), 0);
    }
    for (size_t i = 0; i < KERNELS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < KERNELS; i++) {
        if (starts[i].store == NULL)
            fail_msg("kernel %zu: %s", i, starts[i].e.message);
        alone += store_was_alone(starts[i].store);
    }
    assert_int_equal(alone, 1);
    for (size_t i = 0; i < KERNELS; i++)
        store_close(starts[i].store);
    assert_string_equal(postgres_cluster_query(url, "SELECT count(*) FROM schema_migrations"), "1");
    postgres_cluster_drop(url);
}

/* ---- who else is there ---- */

static void second_process_is_locked_out(void **state)
{
    struct fixture f;
    struct err e;
    char path[128];

    fixture_open(&f, *(enum fixture_kind *)*state);
    snprintf(path, sizeof(path), "%s/test.db", f.folder);
    assert_refused(f.url, ERR_CONFLICT, path);
    pid_t pid = fork();
    if (pid == 0)
        _exit(open_url(f.url, &e) == NULL && e.code == ERR_CONFLICT ? 7 : 1);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 7);
    fixture_reopen(&f); /* free again once it is closed */
    fixture_close(&f);
}

static void alone_on_the_database(void **state)
{
    struct fixture f;
    struct err e;
    struct store *second, *third;

    fixture_open(&f, *(enum fixture_kind *)*state);
    assert_true(store_was_alone(f.store));
    second = open_url(f.url, &e);
    assert_non_null(second);
    assert_false(store_was_alone(second));
    third = open_url(f.url, &e);
    assert_false(store_was_alone(third));
    store_close(second);
    store_close(third);
    fixture_reopen(&f);
    assert_true(store_was_alone(f.store));
    fixture_close(&f);
}

static void notes_reach_the_others(void **state)
{
    struct fixture f;
    struct err e;
    struct store *other;
    struct uuid id;
    struct store_note note, notes[3];
    bool seen[3] = {false};

    fixture_open(&f, *(enum fixture_kind *)*state);
    other = open_url(f.url, &e);
    assert_non_null(other);
    id = fixture_uuid(&f);
    notes[0] = (struct store_note){.kind = 'd'};
    notes[1] = (struct store_note){.kind = 'e', .id = id};
    notes[2] = (struct store_note){.kind = 'a', .text = STR("agent 'x' \"y\"")};
    store_notify(f.store, notes, COUNT(notes));
    store_notify(f.store, notes, COUNT(notes));
    for (int i = 0; i < 20 && !(seen[0] && seen[1] && seen[2]); i++) {
        if (!store_listen(other, US_PER_S, &f.arena, &note))
            continue;
        seen[0] |= note.kind == 'd';
        seen[1] |= note.kind == 'e' && uuid_eq(&note.id, &id);
        seen[2] |= note.kind == 'a' && str_eq(note.text, notes[2].text);
    }
    assert_true(seen[0] && seen[1] && seen[2]);
    assert_false(
        store_listen(f.store, 100 * US_PER_MS, &f.arena, &note)); /* its own are not news */
    /* The link is cut: it comes back by itself. */
    (void)postgres_cluster_query(f.url,
                                 "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                                 " WHERE datname = current_database() AND pid <> pg_backend_pid()");
    seen[1] = false;
    for (int i = 0; i < 50 && !seen[1]; i++) {
        store_notify(f.store, &notes[1], 1);
        (void)!store_listen(f.store, 0, &f.arena, &note);
        seen[1] = store_listen(other, 200 * US_PER_MS, &f.arena, &note) && note.kind == 'e';
    }
    assert_true(seen[1]);
    store_close(other);
    fixture_close(&f);
}

static void sqlite_is_alone(void **state)
{
    struct fixture f;
    struct store_note note = {.kind = 'd'};

    fixture_open(&f, *(enum fixture_kind *)*state);
    assert_true(store_is_sqlite(f.store));
    assert_true(store_was_alone(f.store));
    store_notify(f.store, &note, 1);
    assert_false(store_listen(f.store, 0, &f.arena, &note));
    fixture_close(&f);
}

/* ---- in memory ---- */

/* The youngest of the folders, which may also be those of kernels that run beside this test. */
static void youngest_memory_folder(char *name, size_t size)
{
    DIR *dir = opendir("/dev/shm");
    struct dirent *entry;
    struct timespec youngest = {0};

    assert_non_null(dir);
    name[0] = '\0';
    while ((entry = readdir(dir)) != NULL) {
        char path[512];
        struct stat st;

        if (strncmp(entry->d_name, "rebuno-memory-", 14) != 0)
            continue;
        snprintf(path, sizeof(path), "/dev/shm/%s/rebuno.db.lock", entry->d_name);
        if (stat(path, &st) != 0 || st.st_ctim.tv_sec < youngest.tv_sec ||
            (st.st_ctim.tv_sec == youngest.tv_sec && st.st_ctim.tv_nsec <= youngest.tv_nsec))
            continue;
        youngest = st.st_ctim;
        snprintf(name, size, "/dev/shm/%s", entry->d_name);
    }
    closedir(dir);
}

static void memory_leaves_nothing(void **state)
{
    struct fixture f;
    struct stat st;
    char folder[300];
    int ready[2], status;
    char byte;
    pid_t pid;

    (void)state;
    if (access("/dev/shm", W_OK) != 0)
        skip();
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        struct err e;
        struct store *s = open_url("memory:", &e);

        youngest_memory_folder(folder, sizeof(folder));
        if (s == NULL || write(ready[1], folder, strlen(folder) + 1) < 0)
            _exit(1);
        pause();
    }
    for (size_t i = 0; read(ready[0], &byte, 1) == 1; i++) {
        folder[i] = byte;
        if (byte == '\0')
            break;
    }
    assert_int_equal(stat(folder, &st), 0);
    kill(pid, SIGKILL); /* leaves its folder behind */
    waitpid(pid, &status, 0);
    assert_int_equal(stat(folder, &st), 0);
    fixture_open(&f, FIXTURE_MEMORY); /* the next one sweeps it */
    assert_int_equal(stat(folder, &st), -1);
    fixture_agent(&f, "a");
    fixture_load(&f);
    struct uuid id = fixture_execution(&f, "a")->id;
    fixture_commit(&f);
    assert_non_null(fixture_get(&f, &id));
    youngest_memory_folder(folder, sizeof(folder));
    assert_int_equal(stat(folder, &st), 0);
    fixture_close(&f);
    assert_int_equal(stat(folder, &st), -1);
    close(ready[0]);
    close(ready[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),
        cmocka_unit_test(a_password_is_not_told),
        cmocka_unit_test(relative_path),
        ON_BOTH(opened_again),
        ON_BOTH(newer_database_is_refused),
        ON_BOTH(another_build_is_refused),
        cmocka_unit_test(five_kernels_start_at_once),
        ON_SQLITE(second_process_is_locked_out),
        ON_POSTGRES(alone_on_the_database),
        ON_POSTGRES(notes_reach_the_others),
        ON_SQLITE(sqlite_is_alone),
        cmocka_unit_test(memory_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
