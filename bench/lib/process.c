/* SPDX-License-Identifier: Apache-2.0
 * What a process has used. */
#include "lib/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "lib/loop.h"

static int64_t cpu_of(clockid_t id)
{
    struct timespec t;

    if (clock_gettime(id, &t) != 0)
        return 0;
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t process_cpu_ns(pid_t pid)
{
    clockid_t id;

    if (pid <= 0 || clock_getcpuclockid(pid, &id) != 0)
        return 0;
    return cpu_of(id);
}

int64_t own_cpu_ns(void)
{
    return cpu_of(CLOCK_PROCESS_CPUTIME_ID);
}

struct memory process_memory(pid_t pid)
{
    struct memory m = {0};
    char line[256], path[64];

    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        die("%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, f) != NULL) {
        long kib;
        if (sscanf(line, "Rss: %ld kB", &kib) == 1)
            m.resident = kib * 1024;
        else if (sscanf(line, "Private_Dirty: %ld kB", &kib) == 1)
            m.private_dirty = kib * 1024;
        else if (sscanf(line, "Private_Clean: %ld kB", &kib) == 1)
            m.private_clean = kib * 1024;
    }
    fclose(f);
    return m;
}

int64_t process_threads(pid_t pid)
{
    char line[256], path[64];
    long n = 0;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        die("%s: %s", path, strerror(errno));
    while (n == 0 && fgets(line, sizeof line, f) != NULL)
        (void)sscanf(line, "Threads: %ld", &n);
    fclose(f);
    return n;
}

const struct sync_counts *sync_counts_map(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        die("%s: %s", path, strerror(errno));
    void *p = mmap(NULL, sizeof(struct sync_counts), PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        die("%s: %s", path, strerror(errno));
    close(fd);
    return p;
}
