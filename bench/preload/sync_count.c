/* SPDX-License-Identifier: Apache-2.0
 * Counts the syncs of a program: LD_PRELOAD=sync_count.so, REBUNO_BENCH_SYNCS names the file of
 * counters that the load generator maps too (lib/process.h). Works without privileges and costs
 * nothing beside a sync. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib/process.h"

static struct sync_counts *counts;

__attribute__((constructor)) static void counts_map(void)
{
    const char *path = getenv("REBUNO_BENCH_SYNCS");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0)
        return;
    if (ftruncate(fd, sizeof *counts) == 0) {
        void *p = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        counts = p == MAP_FAILED ? NULL : p;
    }
    close(fd);
}

static int64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int counted(long call, int fd, int64_t *n, int64_t *ns)
{
    int64_t from = now();
    int result = (int)syscall(call, fd);

    __atomic_fetch_add(n, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(ns, now() - from, __ATOMIC_RELAXED);
    return result;
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    if (counts == NULL)
        return (int)syscall(SYS_fdatasync, fd);
    return counted(SYS_fdatasync, fd, &counts->data_syncs, &counts->data_sync_ns);
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    if (counts == NULL)
        return (int)syscall(SYS_fsync, fd);
    return counted(SYS_fsync, fd, &counts->full_syncs, &counts->full_sync_ns);
}
