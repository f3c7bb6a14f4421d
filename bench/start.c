/* SPDX-License-Identifier: Apache-2.0
 * From spawning a kernel to its first 200 on /v0/health, several times over.
 *
 *   start PORT ROUNDS COMMAND [ARGUMENT …] */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/loop.h"
#include "lib/samples.h"

enum { PATIENCE_S = 20, POLL_US = 100 };

/* Its greeting is not wanted; what it complains of goes to standard error. */
static pid_t spawn(char **command)
{
    pid_t pid = fork();

    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid > 0)
        return pid;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0)
        dup2(null, STDOUT_FILENO);
    execv(command[0], command);
    die("%s: %s", command[0], strerror(errno));
}

static bool is_healthy(uint16_t port)
{
    static const struct str GET =
        STR_INIT("GET /v0/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    char head[256];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool healthy = false;

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0 &&
        send(fd, GET.p, GET.n, MSG_NOSIGNAL) == (ssize_t)GET.n) {
        ssize_t n = recv(fd, head, sizeof head, 0);
        healthy = n >= 12 && memcmp(head + 9, "200", 3) == 0;
    }
    close(fd);
    return healthy;
}

static int64_t start_once(uint16_t port, char **command)
{
    int64_t from = now_ns(), ended;
    int status;
    pid_t pid = spawn(command);

    while (!is_healthy(port)) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            die("the kernel ended before it answered");
        if (now_ns() - from > PATIENCE_S * NS_PER_S)
            die("no answer within %d s", PATIENCE_S);
        nanosleep(&(struct timespec){.tv_nsec = POLL_US * NS_PER_US}, NULL);
    }
    ended = now_ns();
    kill(pid, SIGTERM);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("the kernel did not stop in order");
    return ended - from;
}

int main(int argc, char **argv)
{
    struct samples all = {0};
    struct buf out = {0};
    struct json_writer w = {.out = &out};

    if (argc < 4)
        die("start PORT ROUNDS COMMAND [ARGUMENT …]");
    uint16_t port = (uint16_t)strtoul(argv[1], NULL, 10);
    for (long i = strtol(argv[2], NULL, 10); i > 0; i--)
        samples_add(&all, start_once(port, argv + 3));
    jw_open(&w, '{');
    samples_write(&all, "start_us", &w);
    jw_close(&w, '}');
    printf("%.*s\n", STR_ARG(buf_str(&out)));
    return 0;
}
