/* check_fuzz_store.c - the corpus of tests/fuzz/fuzz_store.c through the same entry, each input at a guarded page. */
#include "check.h"

#include <dirent.h>

#include "../fuzz/fuzz_store.c"

#define CORPUS PLP_SOURCE_DIR "/tests/fuzz/corpus/store"

static void corpus(void)
{
    DIR *d = opendir(CORPUS);
    char path[1024];
    int n_files = 0;

    CHECK(d, "%s cannot be opened", CORPUS);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", CORPUS, e->d_name);
        FILE *in = fopen(path, "rb");
        if (!in) { CHECK(0, "%s cannot be read", path); continue; }
        fseek(in, 0, SEEK_END);
        const size_t n = (size_t)ftell(in);
        rewind(in);
        uint8_t *data = guarded(n + 1);     /* its own page also if the input is empty */
        CHECK(fread(data + 1, 1, n, in) == n, "%s cannot be read", path);
        fclose(in);
        LLVMFuzzerTestOneInput(data + 1, n);    /* aborts on a contradiction */
        unguard(data, n + 1);
        n_files++;
    }
    if (d) closedir(d);
    CHECK(n_files >= 20, "only %d inputs", n_files);
    printf("  %d inputs\n", n_files);
}

int main(void)
{
    RUN(corpus);
    return check_done();
}
