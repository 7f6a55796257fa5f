/* check_fuzz_vocab.c - the corpus of tests/fuzz/fuzz_vocab.c through the same entry. */
#include <dirent.h>

#include "../fuzz/fuzz_vocab.c"
#include "shared.h"

#define CORPUS PLP_SOURCE_DIR "/tests/fuzz/corpus/vocab"

static void corpus(void)
{
    DIR *d = opendir(CORPUS);
    int n_files = 0;

    CHECK(d, "%s cannot be opened", CORPUS);
    for (struct dirent *e; d && (e = readdir(d)); ) {
        char path[1024];
        size_t n = 0;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", CORPUS, e->d_name);
        char *data = read_whole(path, &n);
        CHECK(data, "%s cannot be read", path);
        if (!data)
            continue;
        uint8_t *copy = guarded(n + 1);     /* its own page also if the input is empty */
        memcpy(copy + 1, data, n);
        LLVMFuzzerTestOneInput(copy + 1, n);/* aborts on a contradiction */
        unguard(copy, n + 1);
        free(data);
        n_files++;
    }
    if (d)
        closedir(d);
    CHECK(n_files >= 50, "only %d inputs", n_files);
    printf("  %d inputs\n", n_files);
}

int main(void)
{
    RUN(corpus);
    return check_done();
}
