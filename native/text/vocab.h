/*
 * text/vocab.h - tokens to text and back; the public calls (plp_vocab_*, plp_tokenize, ...) are in plp.h
 *
 * vocab.c      tables from GGUF metadata: spellings, scores, kinds, special ids, lookup
 * pretoken.c   the regular expressions of the byte-level BPE families, as hand-written scanners over
 *              Unicode classes (linear, no recursion); pretoken.def lists the names
 * bpe.c        byte-level BPE merges (heap, n log n)      spm.c   SentencePiece-style merges by score
 * unicode.h    classes generated at build time from Python's unicodedata
 *
 * Threads      read-only after open: any
 */
#ifndef PLP_TEXT_VOCAB_H
#define PLP_TEXT_VOCAB_H

#include "base/status.h"

#endif
