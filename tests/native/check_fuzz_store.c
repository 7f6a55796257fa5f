/* check_fuzz_store.c - the corpus of tests/fuzz/fuzz_store.c through the same entry */
#include "../fuzz/fuzz_store.c"
#include "fuzz_corpus.h"

static void corpus(void) { replay("store", 20); }

int main(void)
{
    RUN(corpus);
    return check_done();
}
