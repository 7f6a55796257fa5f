/*
 * fuzz_store.c - any bytes as a KV file: as they are, and with the checksums a forger would write
 *
 * Checksums would keep a fuzzer at the door. So the input is taken for the head of a file, which is
 * grown with zeros to the size that its header asks for (a seed stays small), and summed up anew. What
 * is accepted is then read to the last byte, and every count must hold against the size.
 *
 *   clang-19 -g -O1 -std=gnu11 -D_GNU_SOURCE -DPLP_VERSION='"fuzz"' -fsanitize=fuzzer,address,undefined \
 *       -fno-sanitize-recover=undefined -Inative -Inative/include \
 *       tests/fuzz/fuzz_store.c native/{kv,base}/[a-z]*.c -lm -lpthread -o fuzz_store
 *   ./fuzz_store -max_len=2048 NEW_FOLDER tests/fuzz/corpus/store
 *   ./fuzz_store -merge=1 tests/fuzz/corpus/store NEW_FOLDER    # keep what adds coverage
 *
 * The corpus is replayed without clang by tests/native/check_fuzz_store.c.
 */
#include <stdlib.h>
#include <string.h>

#include "kv/store.h"

enum { HEADER = 640, RUNS = 96, FILE_BYTES = 480, REST_SUM = 488, NOTE_BYTES = 496, SUM = 632, PAGE = 16384, LARGEST = 1 << 18 };

static uint32_t u32_at(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static uint64_t u64_at(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }

/* Opens, and if that is possible reads everything. */
static void walk(const uint8_t *data, size_t n)
{
    plp_store_shape shape;
    plp_store *s = NULL;
    plp_error err;
    uint64_t bytes = HEADER;
    volatile uint64_t sum = 0;           /* the reads must happen */

    memset(&shape, 0, sizeof shape);
    if (n >= HEADER)
        memcpy(&shape, data + 32, sizeof shape);
    const uint32_t kind = n >= HEADER ? u32_at(data + 16) : PLP_STORE_PREFIX;
    const plp_status status = plp_store_parse(&s, "input", data, n, kind, &shape, &err);
    if ((status == PLP_OK) != (s != NULL) || (status && (status != PLP_E_FILE || !err.msg[0])))
        abort();
    if (!s)
        return;
    const plp_store_info *info = plp_store_get(s);
    const uint64_t n_places = ((uint64_t)info->n_tokens + info->shape.block_len - 1) / info->shape.block_len;
    sum ^= plp_checksum(info->tokens, info->n_tokens * sizeof(int32_t));
    bytes += info->n_tokens * sizeof(int32_t) + (info->ref_path ? strlen(info->ref_path) : 0) + info->note_bytes;
    sum ^= plp_checksum(info->note, info->note_bytes);
    for (uint32_t r = 0; r < info->n_runs; r++) {
        const plp_store_run *run = &info->runs[r];
        if ((uint64_t)run->first + run->n_blocks > n_places)
            abort();
        bytes += run->n_blocks * (run->block_bytes + 8);
        for (uint32_t i = 0; i < run->n_blocks; i++)
            sum ^= plp_checksum(plp_store_block(s, r, i), (size_t)run->block_bytes);
    }
    if (bytes > n || plp_store_bytes(s) != n || info->ref_tokens > info->n_tokens)
        abort();
    plp_store_drop(s);
}

/* The file that this head describes, as its forger would finish it; NULL if it would be large. */
static uint8_t *forge(const uint8_t *head, size_t n, size_t *size)
{
    uint64_t n_blocks = 0, payload, end, sum;
    uint8_t *file;

    const uint32_t n_runs = u32_at(head + 24);
    const uint64_t texts = (uint64_t)u32_at(head + 28) + u32_at(head + NOTE_BYTES);
    if (n_runs > PLP_STORE_MAX_RUNS)
        return NULL;
    for (uint32_t r = 0; r < n_runs; r++)
        n_blocks += u32_at(head + RUNS + 24 * r + 8);
    const uint64_t sums = (HEADER + (uint64_t)u32_at(head + 20) * 4 + texts + 7) / 8 * 8;
    end = payload = (sums + n_blocks * 8 + PAGE - 1) / PAGE * PAGE;
    for (uint32_t r = 0; r < n_runs && end <= LARGEST; r++) {
        const uint64_t block_bytes = u64_at(head + RUNS + 24 * r), count = u32_at(head + RUNS + 24 * r + 8);
        end = block_bytes > LARGEST || count > LARGEST ? LARGEST + 1 : end + block_bytes * count;
    }
    if (end > LARGEST || !(file = calloc(1, end)))
        return NULL;
    memcpy(file, head, n < end ? n : end);
    memcpy(file + FILE_BYTES, &end, 8);
    uint8_t *at = file + sums, *block = file + payload;
    for (uint32_t r = 0; r < n_runs; r++) {
        const uint64_t block_bytes = u64_at(head + RUNS + 24 * r);
        for (uint32_t k = u32_at(head + RUNS + 24 * r + 8); k; k--, at += 8, block += block_bytes) {
            sum = plp_checksum(block, block_bytes);
            memcpy(at, &sum, 8);
        }
    }
    sum = plp_checksum(file + HEADER, payload - HEADER);
    memcpy(file + REST_SUM, &sum, 8);
    sum = plp_checksum(file, SUM);
    memcpy(file + SUM, &sum, 8);
    *size = end;
    return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t *file;
    size_t size;

    walk(data, n);
    if (n >= HEADER && (file = forge(data, n, &size))) {
        walk(file, size);
        free(file);
    }
    return 0;
}
