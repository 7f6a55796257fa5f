/*
 * check_gpu_mutants.c - would check_gpu notice a broken kernel? Each of gpu_mutants.py's is put to its questions
 *
 * A mutant runs in a child: it may read where nothing is mapped, or never come to an end. Fiber orders are
 * tried until one shows the fault; that none does is the failure.
 */
#include "check.h"

#ifndef PLP_EMU
int main(void) { CHECK_SKIP("built without the emulator"); }
#else
#include "gpu_suite.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define MUTANT(i, name) extern const plp_simt_body plp_mutant_##i[];
#include "gpu_mutants.def"
#undef MUTANT

static const struct { const char *name; const plp_simt_body *table; } mutants[] = {
    { NULL, plp_emu_kernels },                  /* none: must pass */
#define MUTANT(i, name) { name, plp_mutant_##i },
#include "gpu_mutants.def"
#undef MUTANT
};
enum { N_MUTANTS = sizeof mutants / sizeof *mutants, SECONDS = 60 };

static void in_child(const plp_simt_body *table)
{
    freopen("/dev/null", "w", stdout);
    freopen("/dev/null", "w", stderr);
    setrlimit(RLIMIT_CPU, &(struct rlimit){ SECONDS, SECONDS });
    for (uint32_t seed = 1; seed <= 3 && !check_failed; seed++)
        run_suite(table, seed, true);
    _exit(check_failed != 0);
}

int main(void)
{
    for (int i = 0; i < N_MUTANTS; i++) {
        fflush(stdout);
        const pid_t child = fork();
        int status = 0;
        if (child == 0)
            in_child(mutants[i].table);
        waitpid(child, &status, 0);
        const bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (mutants[i].name)
            CHECK(!passed, "nobody notices: %s", mutants[i].name);
        else
            CHECK(passed, "the kernels themselves fail");
        printf("%-52s %s%s\n", mutants[i].name ? mutants[i].name : "(the kernels as they are)", passed ? "passes" : "caught",
               WIFSIGNALED(status) ? WTERMSIG(status) == SIGXCPU ? " by time" : " by a fault" : "");
    }
    return check_done();
}
#endif
