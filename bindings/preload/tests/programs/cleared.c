// SPDX-License-Identifier: Apache-2.0 OR MIT
// Programs that are started with an environment of their own: they are members of the job, and have that environment too.
// Arguments: MiB of memory that does not fit (0 for none).
#include "check.h"
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static int is_member(void) { unsigned char present; return mincore((void *)0x1fff00000000ul, 4096, &present) == 0; }
static void ends(pid_t child, const char *how) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (status) fprintf(stderr, "%s: %x\n", how, status);
    CHECK(status == 0);
}

int main(int count, char **arguments) {
    if (count > 2) {
        CHECK(is_member() && getenv("A") && !strcmp(getenv("A"), "b") && !getenv("HOME"));
        const char *preloaded = getenv("LD_PRELOAD");
        CHECK(preloaded && (!strcmp(arguments[2], "none") || strstr(preloaded, "libm.so.6")));
        return 0;
    }
    CHECK(is_member());
    size_t pressure = strtoul(arguments[1], NULL, 10) * MIB;
    char *self = strdup(arguments[0]), *none[] = { "A=b", NULL }, *other[] = { "LD_PRELOAD=libm.so.6", "A=b", NULL };
    int file = open(self, O_RDONLY);
    for (int way = 0; way < 14; way++) {
        char **list = way & 1 ? other : none, *line[] = { self, "image", way & 1 ? "other" : "none", NULL };
        char **all = malloc(3 * sizeof *all);
        memcpy(all, list, (way & 1 ? 3 : 2) * sizeof *all);
        if (pressure) press(pressure);
        pid_t child;
        char how[16];
        snprintf(how, sizeof how, "way %d", way);
        if (way / 2 == 5) CHECK(posix_spawn(&child, self, NULL, NULL, line, all) == 0);
        else if (way / 2 == 6) CHECK(posix_spawnp(&child, self, NULL, NULL, line, all) == 0);
        else if (way / 2 == 0 && (child = vfork()) == 0) { execve(self, line, all); _exit(3); }
        else if (way / 2 > 0 && (child = fork()) == 0) {
            if (way / 2 == 1) execvpe(self, line, all);
            if (way / 2 == 2) fexecve(file, line, all);
            environ = all;
            if (way / 2 == 3) execv(self, line);
            if (way / 2 == 4) execvp(self, line);
            _exit(3);
        }
        ends(child, how);
        free(all);
    }
    CHECK(execve("/nowhere", (char *[]){ "x", NULL }, none) == -1 && errno == ENOENT);
    CHECK(environ && getenv("A") == NULL);
    puts("right");
}
