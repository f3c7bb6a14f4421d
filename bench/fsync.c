/* SPDX-License-Identifier: Apache-2.0
 * What the disk takes to make a write durable: pwrite and fdatasync of 4 and 64 KiB, over a file
 * that is there already and at the end of one that grows.
 *
 *   fsync FOLDER SECONDS      (the seconds are shared by the four) */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/loop.h"
#include "lib/samples.h"

enum { KIB = 1024, FILE_BYTES = 4 * KIB * KIB, BLOCK_MAX = 64 * KIB };

static int file_open(const char *folder)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/fsync.tmp", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || unlink(path) != 0)
        die("%s: %s", path, strerror(errno));
    return fd;
}

static void write_at(int fd, size_t n, off_t at)
{
    static char block[BLOCK_MAX];

    block[0]++;
    if (pwrite(fd, block, n, at) != (ssize_t)n)
        die("pwrite: %s", strerror(errno));
}

static void measure(int fd, size_t block, bool append, double seconds, struct samples *out)
{
    int64_t end = now_ns() + (int64_t)(seconds * 1e9);
    off_t at = 0;

    if (!append) {
        for (at = 0; at < FILE_BYTES; at += BLOCK_MAX)
            write_at(fd, BLOCK_MAX, at);
        at = 0;
    }
    if (fsync(fd) != 0)
        die("fsync: %s", strerror(errno));
    while (now_ns() < end) {
        int64_t from = now_ns();
        write_at(fd, block, at);
        if (fdatasync(fd) != 0)
            die("fdatasync: %s", strerror(errno));
        samples_add(out, now_ns() - from);
        at += (off_t)block;
        if (!append && at >= FILE_BYTES)
            at = 0;
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        size_t block;
        bool append;
    } CASES[] = {
        {"overwrite_4k_us", 4 * KIB, false},
        {"append_4k_us", 4 * KIB, true},
        {"overwrite_64k_us", 64 * KIB, false},
        {"append_64k_us", 64 * KIB, true},
    };
    struct buf out = {0};
    struct json_writer w = {.out = &out};

    if (argc != 3)
        die("fsync FOLDER SECONDS");
    jw_open(&w, '{');
    for (size_t i = 0; i < COUNT(CASES); i++) {
        struct samples s = {0};
        int fd = file_open(argv[1]);
        measure(fd, CASES[i].block, CASES[i].append, strtod(argv[2], NULL) / COUNT(CASES), &s);
        samples_write(&s, CASES[i].name, &w);
        close(fd);
        samples_free(&s);
    }
    jw_close(&w, '}');
    printf("%.*s\n", STR_ARG(buf_str(&out)));
    return 0;
}
