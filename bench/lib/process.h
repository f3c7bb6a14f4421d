/* SPDX-License-Identifier: Apache-2.0
 * What a process has used: CPU, memory, syncs. Read from outside, so that nothing measured has to
 * help. */
#ifndef BENCH_PROCESS_H
#define BENCH_PROCESS_H

#include <sys/types.h>

#include "base/str.h"

/* CPU of all its threads, those that have ended too; exact, not in ticks. 0 when pid is 0 or gone.
 */
int64_t process_cpu_ns(pid_t pid);
int64_t own_cpu_ns(void);

struct memory { /* bytes, from smaps_rollup */
    int64_t resident;
    int64_t private_dirty; /* its own and not to be had back: heaps, stacks, written data */
    int64_t private_clean; /* pages of files that no other process happens to map */
};
struct memory process_memory(pid_t pid); /* dies when it cannot be read */

int64_t process_threads(pid_t pid); /* likewise */

/* What preload/sync_count.c counts: in a file that both map. */
struct sync_counts {
    int64_t data_syncs, data_sync_ns; /* fdatasync */
    int64_t full_syncs, full_sync_ns; /* fsync */
};
const struct sync_counts *sync_counts_map(const char *path);

#endif
