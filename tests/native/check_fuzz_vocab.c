/* check_fuzz_vocab.c - the corpus of tests/fuzz/fuzz_vocab.c through the same entry */
#include "../fuzz/fuzz_vocab.c"
#include "fuzz_corpus.h"

static void corpus(void) { replay("vocab", 50); }

int main(void)
{
    RUN(corpus);
    return check_done();
}
