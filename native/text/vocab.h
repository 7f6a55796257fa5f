/*
 * text/vocab.h - tokens to text and back; the public calls (plp_vocab_*, plp_tokenize, ...) are in plp.h
 *
 * vocab.c      opening: tables from GGUF metadata, checked
 * tables.h/.c  the tables, and looking tokens up
 * tokenize.c   text to ids: special tokens (special.c), then words (encode.h is one such call)
 * detokenize.c ids to text
 * pretoken.c   the words of the byte-level families; pretoken.def lists the names, scan.c has the scanners
 * bpe.c        byte-level BPE      spm.c  SentencePiece-style merging      merge.c  the heap behind both
 * unicode.h    classes generated at build time from Python's unicodedata
 * sampler.c    logits to the next token
 *
 * Threads      read-only after open: any
 */
#ifndef PLP_TEXT_VOCAB_H
#define PLP_TEXT_VOCAB_H

#include "base/status.h"

#endif
