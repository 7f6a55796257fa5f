/*
 * format/gguf_split.c - open a model by its path: one file, or all parts of a split one
 *
 * A split model is a set of complete GGUF files NAME-00001-of-0000N.gguf. The first has the model's
 * metadata; all have some tensors and say which part they are (split.no from 0, split.count,
 * split.tensors.count). Whichever part is opened, the first leads and the others are found by name.
 *
 * Errors   as gguf.c; a part that is missing or misnamed is PLP_E_FILE, and the message says which
 */
#include "format/gguf_index.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_PARTS 65535u                    /* split.count is 16 bits wide in the files that exist */
#define SUFFIX    "-00001-of-00005.gguf"

static plp_status open_one(plp_file **out, const char *path, uint32_t flags, plp_error *err)
{
    plp_file *f = plp_zalloc(PLP_MEM_FILE, 1, sizeof *f);
    const size_t n_path = strlen(path) + 1;
    plp_status status;

    if (!f || !(f->path = plp_alloc(PLP_MEM_FILE, n_path, 1))) {
        plp_file_close(f);
        return plp_fail(err, PLP_E_NOMEM, "no memory to open %s", path);
    }
    memcpy(f->path, path, n_path);
    if ((status = plp_map_open(&f->map, path, err))) goto failed;
    f->owns_map = true;
    if ((status = plp_file_read(f, flags, err))) goto failed;
    *out = f;
    return PLP_OK;

failed:
    plp_file_close(f);
    return status;
}

static bool digits(const char *s, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *out = *out * 10 + (uint32_t)(s[i] - '0');
    }
    return true;
}

/* Is `path` the name of part nr (from 1) of n? */
static bool is_part_name(const char *path, uint32_t nr, uint32_t n)
{
    const size_t len = strlen(path), tail = sizeof SUFFIX - 1;
    const char *s = path + len - tail;
    uint32_t a, b;

    return len > tail && s[0] == '-' && digits(s + 1, &a) && !memcmp(s + 6, "-of-", 4) && digits(s + 10, &b) &&
           !strcmp(s + 15, ".gguf") && a == nr && b == n;
}

/* The path of part nr in the place of another part's; NULL without memory. The caller frees it. */
static char *part_path(const char *path, uint32_t nr)
{
    const size_t n = strlen(path) + 1;
    char *p = plp_alloc(PLP_MEM_FILE, n, 1), number[12];

    if (!p) return NULL;
    memcpy(p, path, n);
    snprintf(number, sizeof number, "%05u", nr % 100000u);
    memcpy(p + n - sizeof SUFFIX + 1, number, 5);
    return p;
}

static plp_status split_keys(const plp_file *f, uint32_t *no, uint32_t *count, uint32_t *n_tensors, plp_error *err)
{
    plp_status status = plp_meta_u32(f, "split.count", 0, count, err);
    if (!status) status = plp_meta_u32(f, "split.no", 0, no, err);
    if (!status) status = plp_meta_u32(f, "split.tensors.count", 0, n_tensors, err);
    if (!status && (*count > MAX_PARTS || (*count && *no >= *count)))
        status = plp_fail(err, PLP_E_FILE, "%s says that it is part %" PRIu64 " of %u, which cannot be", plp_file_called(f),
                          (uint64_t)*no + 1, *count);
    return status;
}

/* Part nr (from 1) of n, checked to be that. */
static plp_status open_part(plp_file **out, const char *beside, uint32_t nr, uint32_t n, uint32_t flags, plp_error *err)
{
    char *path = part_path(beside, nr);
    plp_error local = { 0 };
    plp_file *f = NULL;
    plp_status status;
    uint32_t no, count, total;

    if (!path) return plp_fail(err, PLP_E_NOMEM, "no memory to open part %u of %u", nr, n);
    status = open_one(&f, path, flags, &local);
    plp_free(path);
    if (status == PLP_E_IO || (status == PLP_E_FILE && !f))
        return plp_fail(err, PLP_E_FILE, "part %u of %u of this model is missing or damaged: %s", nr, n, local.msg);
    if (status) {
        if (err) *err = local;
        return status;
    }
    status = split_keys(f, &no, &count, &total, err);
    if (!status && (no != nr - 1 || count != n))
        status = plp_fail(err, PLP_E_FILE, "%s says that it is part %u of %u, not part %u of %u; download it again",
                          plp_file_called(f), no + 1, count, nr, n);
    if (status) plp_file_close(f);
    else *out = f;
    return status;
}

/* `*f` is an open part; it is exchanged for the first part, with all others adopted. */
static plp_status join_parts(plp_file **f, uint32_t flags, plp_error *err)
{
    uint32_t no, count, total;
    plp_status status = split_keys(*f, &no, &count, &total, err);

    if (status || count < 2) return status;
    if (!is_part_name((*f)->path, no + 1, count))
        return plp_fail(err, PLP_E_FILE, "%s is part %u of %u of a split model and must be called NAME-%05u-of-%05u.gguf, "
                        "beside the other parts; give it its name back", plp_file_called(*f), no + 1, count, no + 1, count);
    if (no) {
        plp_file *first;
        if ((status = open_part(&first, (*f)->path, 1, count, flags, err))) return status;
        plp_file_close(*f);
        *f = first;
    }
    if (!((*f)->siblings = plp_zalloc(PLP_MEM_FILE, count - 1, sizeof *(*f)->siblings)))
        return plp_fail(err, PLP_E_NOMEM, "%s: no memory for %u parts", plp_file_called(*f), count);
    for (uint32_t nr = 2; nr <= count; nr++) {
        plp_file *part;
        plp_error local = { 0 };
        if ((status = open_part(&part, (*f)->path, nr, count, flags, &local)) ||
            (status = plp_file_adopt(*f, part, nr - 1, &local))) {
            if ((status = plp_file_settle(*f, flags, status, &local, err))) return status;
        } else if (part->problem[0] && !(*f)->problem[0])
            memcpy((*f)->problem, part->problem, sizeof part->problem);
    }
    if (total && (*f)->n_tensors != total)
        return plp_fail(err, PLP_E_FILE, "%s: all parts together have %u tensors and not %u as split.tensors.count says",
                        plp_file_called(*f), (*f)->n_tensors, total);
    return PLP_OK;
}

plp_status plp_file_open(plp_file **out, const char *path, uint32_t flags, plp_error *err)
{
    plp_error local = { 0 };
    plp_file *f = NULL;
    plp_status status = open_one(&f, path, flags, err);

    if (status) return status;
    status = join_parts(&f, flags, &local);
    if ((status = plp_file_settle(f, flags, status, &local, err))) plp_file_close(f);
    else *out = f;
    return status;
}
