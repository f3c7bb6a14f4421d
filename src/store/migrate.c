/* SPDX-License-Identifier: Apache-2.0
 * Numbered SQL files, embedded in the program, each applied once and recorded with its checksum. */
#include "base/clock.h"
#include "base/fault.h"
#include "store/internal.h"

struct migration {
    const char *dialect;
    int64_t number;
    const char *name, *text;
};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverlength-strings"
static const struct migration MIGRATIONS[] = {
#include "migrations.inc"
};
#pragma GCC diagnostic pop

static const char TABLE[] =
    "CREATE TABLE IF NOT EXISTS schema_migrations (number BIGINT PRIMARY KEY,"
    " name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)";

static const struct db_sql SQL_APPLIED = {
    .name = "migrations_applied",
    .sqlite = "SELECT number, name, checksum FROM schema_migrations ORDER BY number",
    .types = "",
};
static const struct db_sql SQL_RECORD = {
    .name = "migration_record",
    .sqlite = "INSERT INTO schema_migrations (number, name, checksum, applied_at) VALUES ($1, $2, "
              "$3, $4)",
    .types = "itti",
    .exact = true,
};

enum { MIGRATIONS_MAX = 1024 };

struct applied {
    bool done[MIGRATIONS_MAX];
    const char *dialect;
    bool newer, differs;
    char name[64]; /* of the one that is newer or differs */
};

static void checksum(const struct migration *m, char out[HASH_HEX_LEN])
{
    struct hash h;

    hash_sha256(str_of(m->text), &h);
    hash_hex(&h, out);
}

static const struct migration *find(const char *dialect, int64_t number)
{
    for (size_t i = 0; i < COUNT(MIGRATIONS); i++)
        if (strcmp(MIGRATIONS[i].dialect, dialect) == 0 && MIGRATIONS[i].number == number)
            return &MIGRATIONS[i];
    return NULL;
}

static void on_applied(void *ctx, struct db *db, size_t row)
{
    struct applied *applied = ctx;
    const struct migration *m = find(applied->dialect, db_get_int(db, 0));
    struct str name = db_get_str(db, 1);
    char sum[HASH_HEX_LEN];

    (void)row;
    if (m == NULL) {
        applied->newer = true;
    } else {
        ASSERT(m->number < MIGRATIONS_MAX);
        applied->done[m->number] = true;
        checksum(m, sum);
        if (str_eq(db_get_str(db, 2), str_make(sum, sizeof(sum))))
            return;
        applied->differs = true;
    }
    if (name.n >= sizeof(applied->name))
        name.n = sizeof(applied->name) - 1;
    memcpy(applied->name, name.p, name.n);
    applied->name[name.n] = '\0';
}

static bool read_applied(struct db *db, struct applied *applied, struct err *e)
{
    if (!db_script(db, TABLE, e))
        return false;
    db_call(db, &SQL_APPLIED, on_applied, applied);
    db_one(db);
    if (!db_flush(db, e))
        return false;
    if (applied->newer)
        return err_set(e, ERR_CONFLICT,
                       "the database was written by a newer rebuno (it has migration %s); use that "
                       "version or a later one",
                       applied->name);
    if (applied->differs)
        return err_set(e, ERR_CONFLICT,
                       "migration %s of the database is not the one this program knows: it was "
                       "written by another build",
                       applied->name);
    return true;
}

static bool apply_one(struct db *db, const struct migration *m, struct err *e)
{
    char sum[HASH_HEX_LEN];

    if (!db_script(db, m->text, e))
        return false;
    checksum(m, sum);
    db_call(db, &SQL_RECORD, NULL, NULL);
    db_int(db, m->number);
    db_text(db, str_of(m->name));
    db_text(db, str_make(sum, sizeof(sum)));
    db_int(db, clock_wall_us());
    db_one(db);
    return db_flush(db, e);
}

static bool apply_missing(struct db *db, const char *dialect, struct err *e)
{
    struct applied applied = {.dialect = dialect};

    if (!db_flush(db, e) || !read_applied(db, &applied, e))
        return false;
    for (size_t i = 0; i < COUNT(MIGRATIONS); i++) { /* the table is in the order of the numbers */
        const struct migration *m = &MIGRATIONS[i];

        if (strcmp(m->dialect, dialect) == 0 && !applied.done[m->number] && !apply_one(db, m, e))
            return false;
    }
    return true;
}

bool store_migrate(struct db *db, bool sqlite, struct err *e)
{
    bool unknown;

    db_begin(db);
    if (!sqlite && !db_script(db, "SELECT pg_advisory_xact_lock(7234091251883701)", e)) {
        db_rollback(db);
        return false;
    }
    if (!apply_missing(db, sqlite ? "sqlite" : "postgres", e)) {
        db_rollback(db);
        return false;
    }
    FAULT("store.migrate.before_commit");
    return db_commit(db, &unknown, e);
}
