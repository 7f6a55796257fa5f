/* check_fuzz_gguf.c - the corpus of tests/fuzz/fuzz_gguf.c through the same entry */
#include "../fuzz/fuzz_gguf.c"
#include "fuzz_corpus.h"

static void corpus(void) { replay("gguf", 50); }

int main(void)
{
    RUN(corpus);
    return check_done();
}
