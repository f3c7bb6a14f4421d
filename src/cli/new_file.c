/* SPDX-License-Identifier: Apache-2.0
 * Writing aside and renaming. */
#include "cli/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"

struct new_file {
    const char *path; /* borrowed */
    struct buf aside; /* NUL-terminated */
    FILE *stream;
};

static const int INTERRUPTS[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_INTERRUPTS = sizeof INTERRUPTS / sizeof INTERRUPTS[0] };

static const char *volatile to_remove; /* for the handler; NULL: nothing */
static struct sigaction before[N_INTERRUPTS];

static void on_interrupt(int signal_number)
{
    const char *path = to_remove;

    if (path != NULL)
        unlink(path);
    _exit(128 + signal_number); /* as a shell shows it */
}

static void watch_interrupts(const char *aside)
{
    struct sigaction action = {.sa_handler = on_interrupt};

    to_remove = aside;
    for (size_t i = 0; i < N_INTERRUPTS; i++)
        sigaction(INTERRUPTS[i], &action, &before[i]);
}

static void stop_watching(void)
{
    for (size_t i = 0; i < N_INTERRUPTS; i++)
        sigaction(INTERRUPTS[i], &before[i], NULL);
    to_remove = NULL;
}

static void free_file(struct new_file *f)
{
    buf_free(&f->aside);
    free(f);
}

/* A rename would put a file in the place of a device or a pipe. */
static bool check_target(const char *path, struct err *e)
{
    struct stat st;

    if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
        return true;
    return err_set(e, ERR_VALIDATION, "cannot write %s: it is no regular file", path);
}

struct new_file *new_file_open(const char *path, struct err *e)
{
    struct new_file *f;

    if (!check_target(path, e))
        return NULL;
    f = xzalloc(sizeof *f);
    f->path = path;
    buf_printf(&f->aside, "%s.%ld.part", path, (long)getpid());
    buf_add_byte(&f->aside, '\0');
    f->stream = fopen(f->aside.p, "wxe");
    if (f->stream == NULL) {
        err_set(e, ERR_VALIDATION, "cannot write %s: %s", path,
                errno == ENOENT ? "its folder does not exist" : strerror(errno));
        free_file(f);
        return NULL;
    }
    watch_interrupts(f->aside.p);
    return f;
}

FILE *new_file_stream(const struct new_file *f)
{
    return f->stream;
}

bool new_file_close(struct new_file *f, bool keep, struct err *e)
{
    bool ok = fflush(f->stream) == 0 && !ferror(f->stream) && fsync(fileno(f->stream)) == 0;
    int why = errno;

    if (fclose(f->stream) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && keep && rename(f->aside.p, f->path) != 0) {
        ok = false;
        why = errno;
    }
    if (!ok || !keep)
        unlink(f->aside.p);
    stop_watching();
    if (keep && !ok)
        err_set(e, ERR_UNAVAILABLE, "cannot write %s: %s", f->path, strerror(why));
    free_file(f);
    return ok && keep;
}
