/*
 * tests/native/shared.h - test data that lies beside the project, not in it
 *
 * $PLP_SHARED, or ../shared beside the project root; the default model is $PLP_MODEL, or
 * models/cache/SmolLM2-135M-Instruct.Q4_1.gguf. What is not there is skipped with a word.
 */
#ifndef SHARED_H
#define SHARED_H

#include "check.h"

static inline const char *shared_path(char out[1024], const char *name)
{
    const char *dir = getenv("PLP_SHARED");
    if (dir && *dir)
        snprintf(out, 1024, "%s/%s", dir, name);
    else
        snprintf(out, 1024, "%s/../shared/%s", PLP_SOURCE_DIR, name);
    return out;
}

static inline const char *model_path(char out[1024])
{
    const char *path = getenv("PLP_MODEL");
    if (path && *path)
        snprintf(out, 1024, "%s", path);
    else
        snprintf(out, 1024, "%s/models/cache/SmolLM2-135M-Instruct.Q4_1.gguf", PLP_SOURCE_DIR);
    return out;
}

/* A whole file, NUL-terminated, or NULL; free it. */
static inline char *read_whole(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *data = NULL;
    long size;
    if (f && !fseek(f, 0, SEEK_END) && (size = ftell(f)) >= 0 && (data = malloc((size_t)size + 1))) {
        rewind(f);
        *n = fread(data, 1, (size_t)size, f);
        data[*n] = 0;
    }
    if (f)
        fclose(f);
    return data;
}
#endif
