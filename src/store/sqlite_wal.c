/* SPDX-License-Identifier: Apache-2.0 */
#include "store/sqlite_wal.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

/* SQLite's unix VFS writes at most 128 KiB - 1 in one call. */
enum { GATHER_MAX = 120 * 1024 };

struct wal_file {
    sqlite3_file base;
    sqlite3_file *real; /* behind this struct */
    char *bytes;        /* owned; allocated by the first write */
    int n;              /* gathered, to be written at `at` */
    sqlite3_int64 at;
};

static sqlite3_vfs *system_vfs;

static struct wal_file *self_of(sqlite3_file *file)
{
    return (struct wal_file *)file;
}

static int write_gathered(struct wal_file *self)
{
    int n = self->n;

    self->n = 0; /* also when it fails: nothing is tried twice */
    if (n > 0 && FAULT_FAILS("sqlite.log.write"))
        return SQLITE_IOERR_WRITE;
    return n == 0 ? SQLITE_OK : self->real->pMethods->xWrite(self->real, self->bytes, n, self->at);
}

static int wal_write(sqlite3_file *file, const void *bytes, int n, sqlite3_int64 at)
{
    struct wal_file *self = self_of(file);
    int rc = SQLITE_OK;

    if (self->n > 0 && (at != self->at + self->n || n > GATHER_MAX - self->n))
        rc = write_gathered(self);
    if (rc != SQLITE_OK)
        return rc;
    if (self->bytes == NULL)
        self->bytes = malloc(GATHER_MAX);
    if (self->bytes == NULL || n > GATHER_MAX)
        return self->real->pMethods->xWrite(self->real, bytes, n, at);
    if (self->n == 0)
        self->at = at;
    memcpy(self->bytes + self->n, bytes, (size_t)n);
    self->n += n;
    return SQLITE_OK;
}

static int wal_close(sqlite3_file *file)
{
    struct wal_file *self = self_of(file);
    int rc = write_gathered(self), closed = self->real->pMethods->xClose(self->real);

    free(self->bytes);
    return rc == SQLITE_OK ? closed : rc;
}

static int wal_read(sqlite3_file *file, void *bytes, int n, sqlite3_int64 at)
{
    struct wal_file *self = self_of(file);
    int rc = write_gathered(self);

    return rc == SQLITE_OK ? self->real->pMethods->xRead(self->real, bytes, n, at) : rc;
}

static int wal_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    struct wal_file *self = self_of(file);
    int rc = write_gathered(self);

    return rc == SQLITE_OK ? self->real->pMethods->xTruncate(self->real, size) : rc;
}

static int wal_sync(sqlite3_file *file, int flags)
{
    struct wal_file *self = self_of(file);
    int rc = write_gathered(self);

    if (rc == SQLITE_OK && FAULT_FAILS("sqlite.log.sync"))
        return SQLITE_IOERR_FSYNC;
    return rc == SQLITE_OK ? self->real->pMethods->xSync(self->real, flags) : rc;
}

static int wal_size(sqlite3_file *file, sqlite3_int64 *size)
{
    struct wal_file *self = self_of(file);
    int rc = write_gathered(self);

    return rc == SQLITE_OK ? self->real->pMethods->xFileSize(self->real, size) : rc;
}

static int wal_lock(sqlite3_file *file, int level)
{
    return self_of(file)->real->pMethods->xLock(self_of(file)->real, level);
}

static int wal_unlock(sqlite3_file *file, int level)
{
    return self_of(file)->real->pMethods->xUnlock(self_of(file)->real, level);
}

static int wal_check_lock(sqlite3_file *file, int *held)
{
    return self_of(file)->real->pMethods->xCheckReservedLock(self_of(file)->real, held);
}

static int wal_control(sqlite3_file *file, int op, void *arg)
{
    return self_of(file)->real->pMethods->xFileControl(self_of(file)->real, op, arg);
}

static int wal_sector_size(sqlite3_file *file)
{
    return self_of(file)->real->pMethods->xSectorSize(self_of(file)->real);
}

static int wal_characteristics(sqlite3_file *file)
{
    return self_of(file)->real->pMethods->xDeviceCharacteristics(self_of(file)->real);
}

static const sqlite3_io_methods METHODS = {
    .iVersion = 1, /* a log is neither mapped nor shared memory */
    .xClose = wal_close,
    .xRead = wal_read,
    .xWrite = wal_write,
    .xTruncate = wal_truncate,
    .xSync = wal_sync,
    .xFileSize = wal_size,
    .xLock = wal_lock,
    .xUnlock = wal_unlock,
    .xCheckReservedLock = wal_check_lock,
    .xFileControl = wal_control,
    .xSectorSize = wal_sector_size,
    .xDeviceCharacteristics = wal_characteristics,
};

/* All other files are the system's own. */
static int vfs_open(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *file, int flags,
                    int *out)
{
    struct wal_file *self = self_of(file);
    int rc;

    (void)vfs;
    if ((flags & SQLITE_OPEN_WAL) == 0)
        return system_vfs->xOpen(system_vfs, name, file, flags, out);
    memset(self, 0, sizeof(*self));
    self->real = (sqlite3_file *)(self + 1);
    rc = system_vfs->xOpen(system_vfs, name, self->real, flags, out);
    if (rc == SQLITE_OK)
        self->base.pMethods = &METHODS;
    return rc;
}

void sqlite_wal_vfs_register(void)
{
    static sqlite3_vfs vfs;

    system_vfs = sqlite3_vfs_find(NULL);
    vfs = *system_vfs;
    vfs.zName = SQLITE_WAL_VFS;
    vfs.pNext = NULL;
    vfs.szOsFile = system_vfs->szOsFile + (int)sizeof(struct wal_file);
    vfs.xOpen = vfs_open;
    sqlite3_vfs_register(&vfs, 0);
}
