"""The declarations that cffi reads and the header are one thing."""
import importlib.util

from conftest import ROOT

from pyllama_paged._native import ffi, lib


def test_declarations_follow_the_header():
    spec = importlib.util.spec_from_file_location("_ffi_build", ROOT / "pyllama_paged" / "_ffi_build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    header = (ROOT / "native" / "include" / "plp.h").read_text()
    assert (ROOT / "pyllama_paged" / "_ffi.cdef.txt").read_text() == build.declarations(header), \
        "run: python pyllama_paged/_ffi_build.py declare native/include/plp.h pyllama_paged/_ffi.cdef.txt"


def test_every_status_has_an_exception_of_its_own():
    from pyllama_paged import _native

    statuses = {name: getattr(lib, name) for name in dir(lib) if name.startswith("PLP_E_")}
    assert set(_native._ERRORS) == set(statuses.values())
    assert len(set(_native._ERRORS.values())) == len(statuses)
    for name, status in statuses.items():
        assert ffi.string(lib.plp_status_name(status))
