/*
 * tests/native/fuzz_corpus.h - what a fuzzer found, given to its target once more by an ordinary test
 *
 * Each input ends at an unreadable page. The target (LLVMFuzzerTestOneInput, included before) aborts on a contradiction.
 */
#ifndef FUZZ_CORPUS_H
#define FUZZ_CORPUS_H

#include "check.h"

#include <dirent.h>

static void replay_file(const char *path)
{
    FILE *in = fopen(path, "rb");
    CHECK(in, "%s cannot be read", path);
    if (!in) return;
    fseek(in, 0, SEEK_END);
    const size_t n = (size_t)ftell(in);
    rewind(in);
    uint8_t *data = guarded(n + 1);         /* its own page also if the input is empty */
    CHECK(fread(data + 1, 1, n, in) == n, "%s cannot be read", path);
    fclose(in);
    LLVMFuzzerTestOneInput(data + 1, n);
    unguard(data, n + 1);
}

/* All of tests/fuzz/corpus/KIND, which has at least so many. */
static void replay(const char *kind, int least)
{
    char folder[512], path[1024];
    int n_files = 0;

    snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/%s", PLP_SOURCE_DIR, kind);
    DIR *d = opendir(folder);
    CHECK(d, "%s cannot be opened", folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            replay_file(path);
            n_files++;
        }
    if (d) closedir(d);
    CHECK(n_files >= least, "only %d inputs", n_files);
    printf("  %d inputs\n", n_files);
}

#endif
