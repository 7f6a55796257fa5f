"""
Models for tests and benchmarks, made here or fetched; the files themselves are not in the tree.

``tiny``      a small model with random weights, and ``puppet``, a model that says what it is told
``generate``  random weights in any shape and tensor type, as large as a real model
``blocks``    random quantised blocks with sane values
``llama``     shapes, tensor lists, and the writing of a GGUF file with little memory
``vocabs``    vocabularies: made of bytes, or copied from another file

All of it needs numpy and gguf, nothing else.
"""
