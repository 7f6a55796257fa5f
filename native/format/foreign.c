/*
 * format/foreign.c - what a file is that was meant to be GGUF and is not
 *
 * A download that went wrong leaves a web page, a pointer or half a file under the model's name.
 * Saying which saves the user a search, so the first bytes are compared with what is usual.
 *
 * Source   magic numbers of the formats named; git-lfs pointer specification
 * Threads  pure function: any
 */
#include "format/gguf_index.h"

#include <stdio.h>
#include <string.h>

typedef struct look { const char *bytes; size_t n_bytes; const char *words; } look;
#define LOOK(bytes, words) { bytes, sizeof bytes - 1, words }

static const look looks[] = {
    LOOK("version https://git-lfs", "is a git-lfs pointer, not the model itself; fetch it with `git lfs pull`"),
    LOOK("PK\3\4", "is a zip archive (or a PyTorch checkpoint); unpack or convert it to GGUF first"),
    LOOK("\x1f\x8b", "is gzip-compressed; unpack it first"),
    LOOK("\xfd" "7zXZ", "is xz-compressed; unpack it first"),
    LOOK("\x28\xb5\x2f\xfd", "is zstd-compressed; unpack it first"),
    LOOK("7z\xbc\xaf", "is a 7z archive; unpack it first"),
    LOOK("Rar!", "is a rar archive; unpack it first"),
    LOOK("lmgg", "is a ggml file from before GGUF; convert the original model again"),
    LOOK("tjgg", "is a ggml file from before GGUF; convert the original model again"),
    LOOK("fmgg", "is a ggml file from before GGUF; convert the original model again"),
    LOOK("algg", "is a ggml LoRA adapter, not a model"),
    LOOK("FUGG", "is a big-endian GGUF file; get or convert a little-endian one"),
    LOOK("{", "is JSON text, perhaps a server's error message; download the file again"),
};

/* Text begins like a page: skip a byte order mark and blanks, then look for a tag. */
static bool is_markup(const uint8_t *data, size_t n)
{
    static const char *const tags[] = { "<!doctype", "<html", "<?xml", "<head", "<!--" };
    size_t i = n >= 3 && !memcmp(data, "\xef\xbb\xbf", 3) ? 3 : 0;

    while (i < n && (data[i] == ' ' || (data[i] >= '\t' && data[i] <= '\r'))) i++;
    for (size_t t = 0; t < sizeof tags / sizeof *tags; t++) {
        size_t k = 0;
        while (tags[t][k] && i + k < n && (data[i + k] | (data[i + k] >= 'A' && data[i + k] <= 'Z' ? 32 : 0)) == tags[t][k]) k++;
        if (!tags[t][k]) return true;
    }
    return false;
}

void plp_foreign_describe(const uint8_t *data, size_t n, char *out, size_t out_bytes)
{
    const char *words = NULL;
    size_t zeros = 0, text = 0, head = n < 64 ? n : 64;

    for (size_t i = 0; i < head; i++) {
        zeros += data[i] == 0;
        text += (data[i] >= 32 && data[i] < 127) || (data[i] >= '\t' && data[i] <= '\r');
    }
    if (is_markup(data, n)) words = "is a web page, not a model; use the download link itself, not the page around it";
    for (size_t i = 0; !words && i < sizeof looks / sizeof *looks; i++)
        if (n >= looks[i].n_bytes && !memcmp(data, looks[i].bytes, looks[i].n_bytes)) words = looks[i].words;
    if (!words && n >= 10 && data[8] == '{' && data[9] == '"' && !data[6] && !data[7])
        words = "is a safetensors file; convert it to GGUF first";
    if (!words && n < 4) words = "is too short for a GGUF file; download it again";
    if (!words && zeros == head) words = "begins with zeros, like a download that never finished; download it again";
    if (!words && text == head) words = "is a text file, not a GGUF model";
    if (words) snprintf(out, out_bytes, "%s", words);
    else snprintf(out, out_bytes, "is not a GGUF file: it begins with bytes %02x %02x %02x %02x instead of \"GGUF\"",
                  data[0], data[1], data[2], data[3]);
}
