/* engine/look.c - what a prefix or session file holds, for those who have no engine: lists, and choosing what to rebuild */
#include "plp.h"

#include "base/mem.h"
#include "kv/store.h"

struct plp_kv_file { plp_store *store; };

plp_status plp_kv_file_open(plp_kv_file **out, const char *path, plp_error *err)
{
    plp_kv_file *f = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *f);
    if (!f)
        return plp_fail(err, PLP_E_NOMEM, "%s: no memory to look at it", path);
    const plp_status status = plp_store_open(&f->store, path, 0, NULL, err);
    if (status < 0) {
        plp_free(f);
        return status;
    }
    *out = f;
    return PLP_OK;
}

void plp_kv_file_close(plp_kv_file *f)
{
    if (!f)
        return;
    plp_store_drop(f->store);
    plp_free(f);
}

void plp_kv_file_get_info(const plp_kv_file *f, plp_kv_file_info *out)
{
    const plp_store_info *i = plp_store_get(f->store);
    *out = (plp_kv_file_info){
        .kind = (int32_t)i->kind, .block_len = i->shape.block_len, .n_tokens = i->n_tokens, .kv_format = (int32_t)i->shape.kv_format,
        .n_bytes = plp_store_bytes(f->store), .tokens = i->tokens, .reference = i->ref_path, .note = i->note, .n_note = i->note_bytes,
    };
    plp_fingerprint_spell(i->shape.fingerprint, out->fingerprint);
}
