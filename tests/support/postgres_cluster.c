/* SPDX-License-Identifier: Apache-2.0
 * The server refuses to run as root, so root starts it as the user `postgres`. It is a child of the
 * test, dies with it, and is ended by its pid. */
#include "support/postgres_cluster.h"

#include <ftw.h>
#include <pwd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <libpq-fe.h>

enum { PORT = 5432 };

static struct {
    char folder[64]; /* holds data/ and the socket; empty: the cluster is somebody else's */
    char url[256];   /* of the database postgres */
    pid_t pid, owner;
} cluster;

static const char *program(const char *name)
{
    static char path[512];
    const char *bin = getenv("REBUNO_PG_BIN");

    snprintf(path, sizeof(path), "%s/%s", bin == NULL ? "/usr/lib/postgresql/15/bin" : bin, name);
    return path;
}

static void become_postgres(void)
{
    const struct passwd *user = geteuid() == 0 ? getpwnam("postgres") : NULL;

    if (user != NULL && (setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0))
        _exit(126);
    (void)prctl(PR_SET_PDEATHSIG, SIGQUIT);
}

static pid_t spawn(const char *name, const char *const argv[])
{
    const char *path = program(name);
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    become_postgres();
    if (freopen("/dev/null", "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL)
        _exit(126);
    execv(path, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void stop_cluster(void)
{
    int status;

    if (cluster.pid <= 0 || cluster.owner != getpid())
        return;
    kill(cluster.pid, SIGQUIT);
    (void)waitpid(cluster.pid, &status, 0);
    (void)nftw(cluster.folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_folder(char *data, size_t size)
{
    const struct passwd *user = geteuid() == 0 ? getpwnam("postgres") : NULL;

    snprintf(cluster.folder, sizeof(cluster.folder), "/tmp/store-test-pg-XXXXXX");
    assert_non_null(mkdtemp(cluster.folder));
    if (user != NULL)
        assert_int_equal(chown(cluster.folder, user->pw_uid, user->pw_gid), 0);
    snprintf(data, size, "%s/data", cluster.folder);
}

static void wait_until_ready(void)
{
    struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};

    for (int tries = 0; tries < 1500; tries++) {
        PGconn *c = PQconnectdb(cluster.url);
        bool up = PQstatus(c) == CONNECTION_OK;

        PQfinish(c);
        if (up)
            return;
        nanosleep(&pause, NULL);
    }
    fail_msg("the Postgres cluster does not start");
}

static void start_cluster(void)
{
    char data[96], socket_folder[128];
    const char *initdb[] = {"initdb", "-D", data, "-U",   "postgres",         "-A",
                            "trust",  "-N", "-E", "UTF8", "--locale=C.UTF-8", NULL};
    const char *postgres[] = {"postgres",
                              "-D",
                              data,
                              "-k",
                              cluster.folder,
                              "-c",
                              "listen_addresses=",
                              "-c",
                              "fsync=on",
                              "-c",
                              "synchronous_commit=on",
                              "-c",
                              "shared_buffers=64MB",
                              "-c",
                              "max_connections=100",
                              NULL};
    int status = -1;

    make_folder(data, sizeof(data));
    assert_true(waitpid(spawn("initdb", initdb), &status, 0) > 0);
    assert_int_equal(status, 0);
    cluster.owner = getpid();
    cluster.pid = spawn("postgres", postgres);
    assert_true(cluster.pid > 0);
    atexit(stop_cluster);
    snprintf(socket_folder, sizeof(socket_folder), "%s", cluster.folder);
    snprintf(cluster.url, sizeof(cluster.url), "postgres://postgres@/postgres?host=%s",
             socket_folder);
    wait_until_ready();
}

static const char *cluster_url(void)
{
    const char *given = getenv("REBUNO_TEST_PG");

    if (cluster.url[0] != '\0')
        return cluster.url;
    if (given != NULL && given[0] != '\0')
        snprintf(cluster.url, sizeof(cluster.url), "%s", given);
    else
        start_cluster();
    return cluster.url;
}

const char *postgres_cluster_query(const char *url, const char *sql)
{
    static char out[256];
    PGconn *c = PQconnectdb(url);
    PGresult *r = PQexec(c, sql);
    ExecStatusType status = PQresultStatus(r);

    out[0] = '\0';
    if (status == PGRES_TUPLES_OK && PQntuples(r) > 0)
        snprintf(out, sizeof(out), "%s", PQgetvalue(r, 0, 0));
    else if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(c));
    PQclear(r);
    PQfinish(c);
    return out;
}

/* The name stands between "/" and "?" (or the end). */
static void replace_database(const char *name, char *out, size_t size)
{
    const char *url = cluster_url(), *host = strstr(url, "://"),
               *slash = host == NULL ? NULL : strchr(host + 3, '/');
    const char *rest = slash == NULL ? NULL : strchr(slash, '?');

    assert_non_null(slash);
    snprintf(out, size, "%.*s/%s%s", (int)(slash - url), url, name, rest == NULL ? "" : rest);
}

void postgres_cluster_database(char *url, size_t size)
{
    static int count;
    char name[64], sql[128];

    snprintf(name, sizeof(name), "store_test_%d_%d", (int)getpid(), ++count);
    snprintf(sql, sizeof(sql), "CREATE DATABASE %s", name);
    (void)postgres_cluster_query(cluster_url(), sql);
    replace_database(name, url, size);
}

void postgres_cluster_drop(const char *url)
{
    const char *name = strstr(url, "/store_test_"), *end = name == NULL ? NULL : strchr(name, '?');
    char sql[160];

    assert_non_null(name);
    snprintf(sql, sizeof(sql), "DROP DATABASE %.*s WITH (FORCE)",
             (int)(end == NULL ? strlen(name + 1) : (size_t)(end - name - 1)), name + 1);
    (void)postgres_cluster_query(cluster_url(), sql);
}

const char *postgres_cluster_socket(void)
{
    static char path[128];
    const char *host = strstr(cluster_url(), "host=/");

    path[0] = '\0';
    if (host != NULL) {
        size_t n = strcspn(host + 5, "&");

        snprintf(path, sizeof(path), "%.*s/.s.PGSQL.%d", (int)n, host + 5, PORT);
    }
    return path;
}
