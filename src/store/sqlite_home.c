/* SPDX-License-Identifier: Apache-2.0
 * Files and connections of a SQLite database.
 *
 * Two locks keep a second kernel out. One is on a file beside the database, named after the path
 * that all symbolic links lead to; a sweeper of dead folders looks at it, and it is taken before
 * the database is touched. The other is flock() on the database file itself, so that neither a hard
 * link nor a removed lock file gets around it. SQLite's own locks are of another kind (fcntl), and
 * the two do not see each other; but closing any descriptor of a file drops all fcntl locks that
 * the process holds on it, so the one that flock was called on stays open until all connections are
 * closed. */
#include "store/sqlite_home.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "store/sqlite_checkpoint.h"
#include "store/sqlite_wal.h"

static const char MEMORY_PREFIX[] = "rebuno-memory-";

enum { ROOM_BYTES = 1 << 20 };

struct sqlite_home {
    struct buf path, lock_path,
        folder;           /* owned, NUL-terminated; folder is empty unless in memory */
    int lock_fd, file_fd; /* of the lock file and, unless in memory, of the database file */
    dev_t device;         /* of the database file */
    ino_t inode;
    atomic_bool gone; /* it is no longer what the path leads to */
    struct sqlite_checkpointer *checkpointer;
};

static const char *text(const struct buf *b)
{
    return b->p == NULL ? "" : b->p;
}

static void set_text(struct buf *b, const char *head, const char *tail)
{
    buf_clear(b);
    buf_add_z(b, head);
    buf_add_z(b, tail);
    buf_add_byte(b, '\0');
    ASSERT(!b->failed);
}

/* ---- the lock ---- */

enum lock_result { LOCKED, LOCK_HELD, LOCK_ERROR };

static enum lock_result lock_file(const char *path, int *fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*fd < 0)
        return LOCK_ERROR;
    if (fcntl(*fd, F_OFD_SETLK, &lock) == 0)
        return LOCKED;
    int why = errno;
    close(*fd);
    *fd = -1;
    errno = why;
    return why == EAGAIN || why == EACCES ? LOCK_HELD : LOCK_ERROR;
}

static bool in_use(const struct sqlite_home *home, const char *held, struct err *e)
{
    return err_set(e, ERR_CONFLICT,
                   "the database %s is in use by another rebuno process (it holds %s); stop that "
                   "one first, or give this one a database of its own",
                   text(&home->path), held);
}

static bool take_lock(struct sqlite_home *home, struct err *e)
{
    switch (lock_file(text(&home->lock_path), &home->lock_fd)) {
    case LOCKED:
        return true;
    case LOCK_HELD:
        return in_use(home, text(&home->lock_path), e);
    case LOCK_ERROR:
        break;
    }
    return err_set(e, ERR_UNAVAILABLE, "cannot open the lock file %s: %s", text(&home->lock_path),
                   strerror(errno));
}

static bool cannot_open(const struct sqlite_home *home, struct err *e)
{
    if (errno == ENOENT)
        return err_set(e, ERR_UNAVAILABLE,
                       "the folder of the database %s does not exist; create it first",
                       text(&home->path));
    return err_set(e, ERR_UNAVAILABLE, "cannot open the database %s: %s", text(&home->path),
                   strerror(errno));
}

/* A new database begins as an empty file, so that there is something that links lead to. */
static bool resolve_path(struct sqlite_home *home, const char *path, struct err *e)
{
    char *real;

    if (strcmp(path, ":memory:") == 0) /* it would be a file of that name */
        return err_set(e, ERR_VALIDATION, "sqlite://:memory: is not supported; use memory:");
    real = realpath(path, NULL);
    if (real == NULL && errno == ENOENT) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644); /* as SQLite does */

        if (fd >= 0) {
            close(fd);
            real = realpath(path, NULL);
        }
    }
    set_text(&home->path, real == NULL ? path : real, "");
    if (real == NULL)
        return cannot_open(home, e);
    free(real);
    return true;
}

/* A file system without flock leaves it to the lock file. */
static bool lock_inode(struct sqlite_home *home, struct err *e)
{
    int fd = open(text(&home->path), O_RDWR | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) != 0)
        return cannot_open(home, e);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return in_use(home, "that file", e); /* not closed: the holder may be in this process */
    home->file_fd = fd;
    home->device = st.st_dev;
    home->inode = st.st_ino;
    return true;
}

/* ---- in memory ---- */

static void remove_files(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    (void)rmdir(folder);
}

/* A kernel that was killed could not remove its folder; nobody holds that folder's lock any more.
 */
static void sweep_dead_folders(const char *parent)
{
    DIR *dir = opendir(parent);
    struct dirent *entry;
    struct buf folder = {0}, lock = {0};

    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL) {
        struct stat st;
        int fd;

        if (strncmp(entry->d_name, MEMORY_PREFIX, sizeof(MEMORY_PREFIX) - 1) != 0)
            continue;
        set_text(&folder, parent, "/");
        folder.n--;
        buf_add_z(&folder, entry->d_name);
        buf_add_byte(&folder, '\0');
        set_text(&lock, text(&folder), "/rebuno.db.lock");
        if (lstat(text(&folder), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
            access(text(&lock), F_OK) != 0) /* no lock yet: it is being born */
            continue;
        if (lock_file(text(&lock), &fd) != LOCKED)
            continue;
        remove_files(text(&folder));
        close(fd);
    }
    closedir(dir);
    buf_free(&folder);
    buf_free(&lock);
}

static bool make_memory_folder(struct sqlite_home *home, struct err *e)
{
    const char *parent = "/dev/shm";

    if (access(parent, W_OK) != 0) {
        parent = getenv("TMPDIR");
        if (parent == NULL || parent[0] == '\0')
            parent = "/tmp";
    }
    sweep_dead_folders(parent);
    set_text(&home->folder, parent, "/");
    home->folder.n--;
    buf_add_z(&home->folder, MEMORY_PREFIX);
    buf_add_z(&home->folder, "XXXXXX");
    buf_add_byte(&home->folder, '\0');
    if (mkdtemp(home->folder.p) == NULL) {
        bool ok = err_set(e, ERR_UNAVAILABLE, "cannot create a temporary folder %s: %s",
                          text(&home->folder), strerror(errno));

        buf_clear(&home->folder);
        return ok;
    }
    set_text(&home->path, text(&home->folder), "/rebuno.db");
    return true;
}

/* ---- open, close ---- */

static void configure_once(void)
{
    /* Statistics cost a global mutex at each allocation. Connections are never shared between
     * threads. */
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
    sqlite3_config(SQLITE_CONFIG_MULTITHREAD);
    sqlite3_initialize();
    sqlite_wal_vfs_register();
}

/* A folder in memory shows its lock file only once it is locked: a kernel that sweeps takes a free
 * one for dead. */
static bool lock_database(struct sqlite_home *home, bool memory, struct err *e)
{
    struct buf final = {0};
    bool ok;

    set_text(&home->lock_path, text(&home->path), memory ? ".new" : ".lock");
    ok = take_lock(home, e);
    if (ok && memory) {
        set_text(&final, text(&home->path), ".lock");
        if (rename(text(&home->lock_path), text(&final)) != 0)
            ok = err_set(e, ERR_UNAVAILABLE, "cannot name the lock file %s: %s", text(&final),
                         strerror(errno));
        buf_free(&final);
    }
    return ok && (memory || lock_inode(home, e));
}

bool sqlite_home_has_room(const struct sqlite_home *home, struct err *e)
{
    int failed = fallocate(home->lock_fd, 0, 0, ROOM_BYTES) == 0 ? 0 : errno;

    if (ftruncate(home->lock_fd, 0) != 0 && failed == 0)
        failed = errno;
    if (failed == ENOSPC || failed == EDQUOT || failed == EIO)
        return err_set(e, ERR_UNAVAILABLE, "the disk of the database is full");
    return true; /* a file system that cannot tell is taken at its next write's word */
}

bool sqlite_home_look(struct sqlite_home *home, struct err *e)
{
    struct stat st;

    if (home->file_fd >= 0)
        atomic_store(&home->gone, stat(text(&home->path), &st) != 0 || st.st_dev != home->device ||
                                      st.st_ino != home->inode);
    return sqlite_home_in_place(home, e);
}

bool sqlite_home_in_place(const struct sqlite_home *home, struct err *e)
{
    if (!atomic_load(&home->gone))
        return true;
    return err_set(e, ERR_UNAVAILABLE,
                   "the database file is gone: %s is missing or another file; put it back",
                   text(&home->path));
}

struct sqlite_home *sqlite_home_open(const char *path, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct sqlite_home *home = xzalloc(sizeof(*home));
    bool ok = true;

    (void)pthread_once(&once, configure_once);
    home->lock_fd = home->file_fd = -1;
    if (path != NULL)
        ok = resolve_path(home, path, e);
    else
        ok = make_memory_folder(home, e);
    ok = ok && lock_database(home, path == NULL, e);
    if (!ok) {
        sqlite_home_close(home);
        return NULL;
    }
    return home;
}

bool sqlite_home_start(struct sqlite_home *home, struct err *e)
{
    home->checkpointer = sqlite_checkpointer_start(home, e);
    return home->checkpointer != NULL;
}

void sqlite_home_committed(struct sqlite_home *home, sqlite3 *writer, int frames)
{
    if (home->checkpointer != NULL)
        sqlite_checkpointer_note(home->checkpointer, writer, frames);
}

void sqlite_home_close(struct sqlite_home *home)
{
    if (home == NULL)
        return;
    sqlite_checkpointer_stop(home->checkpointer);
    if (home->folder.n > 0)
        remove_files(text(&home->folder));
    if (home->lock_fd >= 0)
        close(home->lock_fd); /* the file stays: removing it would let two newcomers lock different
                                 files */
    if (home->file_fd >= 0)
        close(home->file_fd);
    buf_free(&home->path);
    buf_free(&home->lock_path);
    buf_free(&home->folder);
    free(home);
}

/* ---- connections ---- */

bool sqlite_error(sqlite3 *h, int rc, const char *what, struct err *e)
{
    int code = rc & 0xff, extended = h == NULL ? rc : sqlite3_extended_errcode(h);
    const char *why = sqlite3_errstr(extended);
    enum err_code as = ERR_UNAVAILABLE;

    if (code == SQLITE_CONSTRAINT)
        as = ERR_STORE_RACE;
    else if (code == SQLITE_ERROR || code == SQLITE_MISUSE || code == SQLITE_TOOBIG ||
             code == SQLITE_RANGE)
        as = ERR_INTERNAL;
    log_event(LOG_ERROR, "store.sqlite_error", {"what", str_of(what)}, {"code", log_int(extended)},
              {"error", str_of(why)}, {"detail", str_of(h == NULL ? "" : sqlite3_errmsg(h))});
    if (code == SQLITE_FULL)
        return err_set(e, as, "the disk of the database is full");
    return err_set(e, as, "the database failed: %s", why);
}

static bool pragma_is(sqlite3 *h, const char *sql, const char *want)
{
    sqlite3_stmt *stmt = NULL;
    bool same = false;

    if (sqlite3_prepare_v2(h, sql, -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW) {
        const unsigned char *got = sqlite3_column_text(stmt, 0);

        same = got != NULL && strcmp((const char *)got, want) == 0;
    }
    sqlite3_finalize(stmt);
    return same;
}

/* A setting that did not take would be a promise that is not kept: FULL is what makes a commit
 * durable. */
static bool settings_hold(sqlite3 *h, bool memory)
{
    return pragma_is(h, "PRAGMA journal_mode", "wal") &&
           pragma_is(h, "PRAGMA synchronous", memory ? "0" : "2") &&
           pragma_is(h, "PRAGMA foreign_keys", "1");
}

static bool apply_settings(sqlite3 *h, enum sqlite_role role, bool memory)
{
    static const char *const COMMON =
        "PRAGMA foreign_keys=ON; PRAGMA wal_autocheckpoint=0; PRAGMA temp_store=MEMORY;"
        "PRAGMA trusted_schema=OFF;";
    /* Erasing freed pages would write each of them once more; journal_mode is a property of the
     * file, set first by the writer that creates it. */
    static const char *const WRITE = "PRAGMA journal_mode=WAL; PRAGMA secure_delete=OFF;";
    const char *cache =
        role == SQLITE_WRITER ? "PRAGMA cache_size=-1024" : "PRAGMA cache_size=-256";

    sqlite3_busy_timeout(h, SQLITE_BUSY_MS);
    sqlite3_extended_result_codes(h, 1);
    if (sqlite3_exec(h, memory ? "PRAGMA synchronous=OFF" : "PRAGMA synchronous=FULL", NULL, NULL,
                     NULL) != SQLITE_OK ||
        sqlite3_exec(h, COMMON, NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_exec(h, cache, NULL, NULL, NULL) != SQLITE_OK)
        return false;
    return role == SQLITE_READER || sqlite3_exec(h, WRITE, NULL, NULL, NULL) == SQLITE_OK;
}

sqlite3 *sqlite_connect(const struct sqlite_home *home, enum sqlite_role role, struct err *e)
{
    bool memory = home->folder.n > 0;
    int flags = role == SQLITE_READER ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
    sqlite3 *h = NULL;
    const char *vfs = role == SQLITE_WRITER && !memory ? SQLITE_WAL_VFS : NULL;
    int rc;

    if (memory && role != SQLITE_READER) /* any other is there since the start, or gone */
        flags |= SQLITE_OPEN_CREATE;
    rc = sqlite3_open_v2(text(&home->path), &h, flags | SQLITE_OPEN_NOMUTEX, vfs);

    if (rc == SQLITE_OK && !apply_settings(h, role, memory))
        rc = sqlite3_errcode(h);
    if (rc != SQLITE_OK) {
        (void)sqlite_error(h, rc, "open", e);
        if (rc != SQLITE_FULL)
            err_set(e, ERR_UNAVAILABLE, "cannot open the database %s: %s", text(&home->path),
                    sqlite3_errmsg(h));
    } else if (!settings_hold(h, memory)) {
        rc = SQLITE_ERROR;
        err_set(e, ERR_UNAVAILABLE,
                "the database %s does not take the settings that make commits durable",
                text(&home->path));
    }
    if (rc == SQLITE_OK)
        return h;
    sqlite3_close(h);
    return NULL;
}
