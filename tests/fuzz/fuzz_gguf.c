/*
 * fuzz_gguf.c - any bytes as a GGUF file: opened strictly and leniently, then everything asked
 *
 * walk_both (tests/native/gguf_walk.h) holds the properties; memory errors are the sanitizers' part.
 *
 *   clang-19 -g -O1 -std=gnu11 -D_GNU_SOURCE -DPLP_VERSION='"fuzz"' -fsanitize=fuzzer,address,undefined \
 *       -fno-sanitize-recover=undefined -Inative -Inative/include -Itests/native \
 *       tests/fuzz/fuzz_gguf.c native/{format,base}/[a-z]*.c -lm -lpthread -o fuzz_gguf
 *   ./fuzz_gguf -max_len=8192 -dict=tests/fuzz/gguf.dict NEW_FOLDER tests/fuzz/corpus/gguf
 *   ./fuzz_gguf -merge=1 tests/fuzz/corpus/gguf NEW_FOLDER      # keep what adds coverage
 *
 * The corpus is replayed without clang by tests/native/check_fuzz_gguf.c.
 */
#include "gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    walk_both(data, n);
    return 0;
}
