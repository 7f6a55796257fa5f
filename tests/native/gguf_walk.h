/*
 * gguf_walk.h - ask an opened GGUF file everything that can be asked
 *
 * Shared by check_gguf.c and tests/fuzz/fuzz_gguf.c. Reads every byte that an accessor hands out,
 * also asks one past the ends, and aborts where an answer contradicts another.
 */
#ifndef GGUF_WALK_H
#define GGUF_WALK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/gguf.h"

#define WALK_HOLDS(cond) do { if (!(cond)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); abort(); } } while (0)

static volatile uint64_t walk_sink;         /* so that reads are not optimised away */

static void walk_bytes(const void *data, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((const uint8_t *)data)[i];
    walk_sink += sum;
}

static void walk_pair(const plp_file *f, uint64_t i)
{
    plp_meta m;
    plp_error err;
    uint32_t u;
    float x;
    bool b;
    char text[24];

    WALK_HOLDS(plp_file_meta(f, i, &m, &err) == PLP_OK);
    WALK_HOLDS(m.key[0] && plp_file_find(f, m.key) == (int64_t)i);
    for (uint64_t at = 0; at <= m.n; at++) {
        const char *s = NULL;
        size_t n = 0;
        double d;
        int64_t v;
        const plp_status is_string = plp_file_str(f, i, at, &s, &n, &err);
        const plp_status is_number = plp_file_f64(f, i, at, &d, &err);
        const plp_status is_integer = plp_file_i64(f, i, at, &v, &err);

        WALK_HOLDS(at < m.n || (is_string == PLP_E_ARG && is_number == PLP_E_ARG && is_integer == PLP_E_ARG));
        WALK_HOLDS(is_string || is_number);
        WALK_HOLDS(is_integer || (!is_number && d == (double)v));
        if (!is_string) walk_bytes(s, n);
    }
    plp_meta_u32(f, m.key, 0, &u, &err);
    plp_meta_f32(f, m.key, 0, &x, &err);
    plp_meta_bool(f, m.key, false, &b, &err);
    if (plp_meta_str(f, m.key, "", text, sizeof text, &err) == PLP_OK) WALK_HOLDS(strlen(text) < sizeof text);
}

static void walk_tensor(const plp_file *f, uint64_t i)
{
    plp_tensor_info t;
    plp_error err;
    const void *data;

    WALK_HOLDS(plp_file_tensor(f, i, &t, &err) == PLP_OK);
    const plp_tensor *same = plp_file_tensor_named(f, t.name);
    WALK_HOLDS(same && same->name == t.name && same->n_bytes == t.n_bytes && t.type_name && t.n_dims <= 4);
    if (plp_file_tensor_data(f, i, &data, &err)) {
        WALK_HOLDS(!same->data && plp_file_problem(f));
        return;
    }
    WALK_HOLDS(data == same->data && t.n_bytes > 0 && same->row_bytes > 0 && t.n_bytes % same->row_bytes == 0);
    walk_bytes(data, (size_t)t.n_bytes);
    const plp_type_info *type = plp_type_get(t.type);
    if (type && t.dims[0] <= 65536) {
        float *row = malloc((size_t)t.dims[0] * sizeof *row);
        WALK_HOLDS(row && plp_dequantize(t.type, data, row, t.dims[0], &err) == PLP_OK);
        walk_bytes(row, (size_t)t.dims[0] * sizeof *row);
        free(row);
    }
}

static void walk_file(const plp_file *f)
{
    plp_meta m;
    plp_tensor_info t;
    const uint64_t n_meta = plp_file_n_meta(f), n_tensors = plp_file_n_tensors(f);

    for (uint64_t i = 0; i < n_meta; i++) walk_pair(f, i);
    for (uint64_t i = 0; i < n_tensors; i++) walk_tensor(f, i);
    WALK_HOLDS(plp_file_meta(f, n_meta, &m, NULL) == PLP_E_ARG && plp_file_tensor(f, n_tensors, &t, NULL) == PLP_E_ARG);
    WALK_HOLDS(plp_file_find(f, "no such key") == -1 && !plp_file_tensor_named(f, "no such tensor"));
}

/* Both ways of opening: strict succeeds exactly where lenient succeeds without a problem. */
static void walk_both(const void *data, size_t n)
{
    plp_file *strict = NULL, *lenient = NULL;
    plp_error e1 = { 0 }, e2 = { 0 };
    const plp_status s1 = plp_file_parse(&strict, data, n, 0, &e1), s2 = plp_file_parse(&lenient, data, n, PLP_FILE_LENIENT, &e2);

    WALK_HOLDS((s1 == PLP_OK) == (strict != NULL) && (s2 == PLP_OK) == (lenient != NULL));
    WALK_HOLDS(s1 ? e1.status == s1 && e1.msg[0] : !s2);
    if (lenient) WALK_HOLDS((plp_file_problem(lenient) == NULL) == (s1 == PLP_OK));
    if (strict) walk_file(strict);
    if (lenient) walk_file(lenient);
    plp_file_close(strict);
    plp_file_close(lenient);
}

#endif
