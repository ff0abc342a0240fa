"""czmq's own reader of ZPL, through ctypes: the other opinion on what a document says."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from scale0.config.tree import Item

Tree = tuple[tuple[str, str, "Tree"], ...]
"""Each property as name, value, children."""


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libczmq.so.4")
    except OSError as error:
        raise AssertionError("libczmq.so.4 is missing: run `make setup`, which installs libczmq4") from error
    library.zconfig_str_load.restype = ctypes.c_void_p
    library.zconfig_str_load.argtypes = [ctypes.c_char_p]
    library.zconfig_destroy.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
    for name, kind in (("name", ctypes.c_char_p), ("value", ctypes.c_char_p)):
        function = getattr(library, f"zconfig_{name}")
        function.restype = kind
        function.argtypes = [ctypes.c_void_p]
    for name in ("child", "next"):
        function = getattr(library, f"zconfig_{name}")
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_void_p]
    return library


def _children(library: ctypes.CDLL, node: int) -> Tree:
    out = []
    child = library.zconfig_child(node)
    while child:
        name, value = library.zconfig_name(child), library.zconfig_value(child)
        out.append((name.decode(), value.decode(errors="surrogateescape"), _children(library, child)))
        child = library.zconfig_next(child)
    return tuple(out)


def czmq_reader() -> Callable[[bytes], Tree | None]:
    """A function that reads ZPL as czmq does; nothing where czmq refuses."""
    library = _library()

    def read(data: bytes) -> Tree | None:
        assert b"\0" not in data, "czmq takes a C string"
        assert all(len(line) <= 1024 for line in data.split(b"\n")), "czmq reads past its buffer on longer lines"
        root = library.zconfig_str_load(data)
        if not root:
            return None
        try:
            return _children(library, root)
        finally:
            holder = ctypes.c_void_p(root)
            library.zconfig_destroy(ctypes.byref(holder))

    return read


def tree_of(item: Item) -> Tree:
    """Our own tree in the same shape."""
    return tuple((child.name, child.text, tree_of(child)) for child in item.items)
