"""One row as a Parquet file: plain pages, nothing compressed, and the row as JSON beside them, by which it is read back."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Mapping

_MAGIC = b"PAR1"
_KEY = b"chronaxie.row"
# Physical types of Parquet, and types of fields of Thrift's compact protocol.
_BOOLEAN, _INT64, _DOUBLE, _BYTES = 0, 2, 5, 6
_T_I32, _T_I64, _T_BINARY, _T_LIST, _T_STRUCT = 5, 6, 8, 9, 12


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def _value(kind: int, value: Any) -> bytes:
    if kind in (_T_I32, _T_I64):
        return _varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind == _T_BINARY:
        return _varint(len(value)) + bytes(value)
    if kind == _T_LIST:
        of, items = value
        head = bytes([len(items) << 4 | of]) if len(items) < 15 else bytes([0xF0 | of]) + _varint(len(items))
        return head + b"".join(_value(of, item) for item in items)
    return bytes(value)


def _struct(*fields: tuple[int, int, Any]) -> bytes:
    """A struct of (number, type, value), numbers ascending."""
    out, last = b"", 0
    for number, kind, value in fields:
        out += bytes([number - last << 4 | kind]) + _value(kind, value)
        last = number
    return out + b"\0"


def _plain(value: Any) -> tuple[int, bytes]:
    """The type of a cell, and its page."""
    if isinstance(value, bool):
        return _BOOLEAN, bytes([value])
    if isinstance(value, int):
        return _INT64, struct.pack("<q", value)
    if isinstance(value, float):
        return _DOUBLE, struct.pack("<d", value)
    text = str(value).encode()
    return _BYTES, struct.pack("<I", len(text)) + text


def encode(row: Mapping[str, Any]) -> bytes:
    """A file of one row; cells are of type bool, int (of 64 bits), float or str."""
    body = bytearray(_MAGIC)
    schema = [_struct((4, _T_BINARY, b"row"), (5, _T_I32, len(row)))]
    columns = []
    for name, value in row.items():
        kind, cell = _plain(value)
        # One value a page, no levels: nothing is missing.
        page = _struct((1, _T_I32, 1), (2, _T_I32, 0), (3, _T_I32, 3), (4, _T_I32, 3))
        header = _struct((1, _T_I32, 0), (2, _T_I32, len(cell)), (3, _T_I32, len(cell)), (5, _T_STRUCT, page))
        at, size = len(body), len(header) + len(cell)
        body += header + cell
        text = [(6, _T_I32, 0)] if kind == _BYTES else []
        schema.append(_struct((1, _T_I32, kind), (3, _T_I32, 0), (4, _T_BINARY, name.encode()), *text))
        about = _struct(
            (1, _T_I32, kind), (2, _T_LIST, (_T_I32, [0])), (3, _T_LIST, (_T_BINARY, [name.encode()])), (4, _T_I32, 0),
            (5, _T_I64, 1), (6, _T_I64, size), (7, _T_I64, size), (9, _T_I64, at),
        )  # fmt: skip
        columns.append(_struct((2, _T_I64, at), (3, _T_STRUCT, about)))
    group = _struct((1, _T_LIST, (_T_STRUCT, columns)), (2, _T_I64, len(body) - 4), (3, _T_I64, 1))
    pair = _struct((1, _T_BINARY, _KEY), (2, _T_BINARY, json.dumps(dict(row)).encode()))
    footer = _struct(
        (1, _T_I32, 1), (2, _T_LIST, (_T_STRUCT, schema)), (3, _T_I64, 1), (4, _T_LIST, (_T_STRUCT, [group])),
        (5, _T_LIST, (_T_STRUCT, [pair])), (6, _T_BINARY, b"chronaxie"),
    )  # fmt: skip
    return bytes(body) + footer + struct.pack("<I", len(footer)) + _MAGIC


def decode(data: bytes) -> dict[str, Any] | None:
    """The row of a file that :func:`encode` made, or None where it is no such file, or not all of one."""
    if len(data) < 12 or data[:4] != _MAGIC or data[-4:] != _MAGIC:
        return None
    (size,) = struct.unpack("<I", data[-8:-4])
    footer = data[max(4, len(data) - 8 - size) : -8]
    at = footer.find(_KEY + bytes([1 << 4 | _T_BINARY]))
    if len(footer) != size or at < 0:
        return None
    at, length, shift = at + len(_KEY) + 1, 0, 0
    while at < len(footer):
        byte = footer[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    try:
        row = json.loads(footer[at : at + length])
    except ValueError:
        return None
    # All of it: what it says is what it holds.
    return row if isinstance(row, dict) and encode(row) == data else None


def write(path: str, row: Mapping[str, Any]) -> None:
    """Writes a file that is either there and whole, or not there."""
    aside = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.part")
    with open(aside, "wb") as file:
        file.write(encode(row))
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def load(path: str) -> dict[str, Any] | None:
    """The row of a file, or None where there is none, or a broken one."""
    try:
        with open(path, "rb") as file:
            return decode(file.read())
    except OSError:
        return None
