"""
What cffi needs to build `pyllama_paged._plp`; runs at build time only.

    python _ffi_build.py declare  plp.h  _ffi.cdef.txt   rewrite the declarations from the header
    python _ffi_build.py emit     _ffi.cdef.txt  _plp.c  write the extension's C source

`_ffi.cdef.txt` is the header without what cffi's parser does not take (comments, preprocessor lines, the
export macro). It lies in the tree so that a build needs no parsing of the header, and a test holds the two
together. The C compiler checks every declaration again, against the header itself.
"""

import re
import sys


def declarations(header: str) -> str:
    """The text of `plp.h` as cffi's `cdef` takes it."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"^#ifdef .*?^#endif", "", text, flags=re.S | re.M)      # C++
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    text = text.replace("PLP_API ", "")
    text = re.sub(r"[ \t]+$", "", text, flags=re.M)
    return re.sub(r"\n{2,}", "\n\n", text).strip() + "\n"


def main(action: str, source: str, target: str) -> None:
    with open(source, encoding="utf-8") as f:
        text = f.read()
    if action == "declare":
        with open(target, "w", encoding="utf-8") as f:
            f.write(declarations(text))
        return
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(text)
    ffi.set_source("pyllama_paged._plp", '#include "plp.h"\n', py_limited_api=True)
    ffi.emit_c_code(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
