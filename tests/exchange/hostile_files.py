"""Exported files: sound ones, changed ones, and those that unpack to far more than their size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flbench.exchange import exports, transfer
from flbench.store import Store

ROOT = Path(__file__).parents[2]
SOUND = ROOT / "results/quickstart.parquet"

Change = Callable[[dict[str, Any]], None]


def export(store: Store, path: Path) -> Path:
    """Export every run of a store."""
    exported, problems = transfer.export_runs(store, store.run_ids())
    assert problems == ()
    exports.write(path, exported)
    return path


def _signed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a checksum that fits."""
    return {**row, "sha256": exports._checksum(row)}


def rewrite(path: Path, change: Change, *, sign: bool = True) -> None:
    """Change the first row of a file, and compute its checksum again, as an attacker would."""
    table = pq.read_table(path)
    first, *rows = table.to_pylist()
    change(first)
    pq.write_table(pa.Table.from_pylist([_signed(first) if sign else first, *rows], schema=table.schema), path)


def _row() -> tuple[dict[str, str], pa.Schema]:
    table = pq.read_table(SOUND)
    return table.slice(0, 1).to_pylist()[0], table.schema


def _write(path: Path, rows: Sequence[Mapping[str, Any]], **options: Any) -> None:
    _, schema = _row()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd", **options)


def copies_of_a_row(path: Path) -> None:
    """A sound row 20,000 times: 0.17 GB of text, each column's in one entry of its dictionary."""
    pq.write_table(pq.read_table(SOUND).take([0] * 20_000), path, compression="zstd")


def one_long_text(path: Path) -> None:
    """A text of 200 MB in 9 KB."""
    _write(path, [{**_row()[0], "metrics": " " * 200_000_000}], use_dictionary=False, write_statistics=False)


def false_footer(path: Path) -> None:
    """The same text, with a footer that says that the column has 1,000 bytes."""
    one_long_text(path)
    size = pq.read_metadata(path).row_group(0).column(3).total_uncompressed_size
    data = path.read_bytes()
    true, false = _variable(2 * size), _variable(2 * 1000, len(_variable(2 * size)))
    assert data.count(true) > 0
    path.write_bytes(data.replace(true, false))
    assert pq.read_metadata(path).row_group(0).column(3).total_uncompressed_size == 1000


def _variable(number: int, length: int = 0) -> bytes:
    """Return a number as Thrift's compact protocol writes it, in at least ``length`` bytes."""
    out = bytearray()
    while number > 127 or len(out) + 1 < length:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def shared_prefixes(path: Path) -> None:
    """200 texts of 1 MB, each written as the length of what it shares with the one before."""
    rows = [{**_row()[0], "metrics": " " * 1_000_000}] * 200
    encodings = {"metrics": "DELTA_BYTE_ARRAY"}
    _write(path, rows, use_dictionary=False, write_statistics=False, column_encoding=encodings)


def many_columns(path: Path) -> None:
    pq.write_table(pa.table({f"c{at}": [1] for at in range(5000)}), path)


def many_row_groups(path: Path) -> None:
    _write(path, [dict.fromkeys(_row()[0], "")] * 3000, row_group_size=1)


def deep_schema(path: Path) -> None:
    """A schema of 50,000 groups in each other, which overflows the stack of a decoder that follows them."""
    # A footer by hand: version 1, the elements, no rows, no row groups.
    group = b"\x48\x01x\x15\x02\x00"  # a field name "x" with one child
    leaf = b"\x15\x02\x38\x01x\x00"
    count = 50_000
    footer = b"\x15\x02\x19\xfc" + _variable(count + 1) + group * count + leaf + b"\x16\x00\x19\x0c\x00"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def nested_columns(path: Path) -> None:
    row, schema = _row()
    table = pa.Table.from_pylist([_signed({**row, "metrics": [[row["metrics"]]]})])
    pq.write_table(table.replace_schema_metadata(schema.metadata), path)


def texts_that_are_missing(path: Path) -> None:
    row, schema = _row()
    columns = {name: pa.array([text], pa.string()) for name, text in _signed({**row, "environment": None}).items()}
    pq.write_table(pa.table(columns).replace_schema_metadata(schema.metadata), path)


#: Each with a part of what is said of it.
HOSTILE: Mapping[Callable[[Path], None], str] = {
    copies_of_a_row: "its rows have more than",
    one_long_text: "bytes unpack to more than",
    false_footer: "bytes unpack to more than",
    shared_prefixes: "its rows have more than",
    many_columns: "its schema has 5,001 elements",
    many_row_groups: "its headers have more than",
    deep_schema: "its schema has 50,001 elements",
    nested_columns: "not one written by `flbench export`",
    texts_that_are_missing: "a column is empty",
}
