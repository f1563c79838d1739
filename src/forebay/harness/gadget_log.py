"""Gadget's own trace files, ``gadget.log``: a line of text for each access.

A line has the number of the access, the operation, the state key, the value and two words that are always the same, with a
space between each two: ``17 put 4 0000000000 gadget gadgetFile``. Of the value only its length is kept, and of the state key
a hash, as a state key there does not tell event key and window apart. ``seek`` and ``next``, by which an interval join goes
through its other side, have no counterpart here. They are left out, as they are in Table 1 of the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from forebay.errors import InvalidArgument
from forebay.harness.access import DELETE, GET, MERGE, PUT, SCHEMA
from forebay.store.identity import identities

_OPERATIONS = {"get": GET, "put": PUT, "merge": MERGE, "delete": DELETE}
_OTHERS = ("seek", "next")
_COLUMNS = ("number", "operation", "key", "value", "source", "file")


def read_gadget_log(path: Path) -> Iterator[pa.RecordBatch]:
    r"""The accesses of a ``gadget.log``; their time is their number.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "gadget.log"
    >>> _ = path.write_text("1 get 4 000 gadget gadgetFile\n2 put 4 000 gadget gadgetFile\n")
    >>> [batch.to_pydict()["operation"] for batch in read_gadget_log(path)]
    [[0, 1]]
    """
    read = pyarrow.csv.ReadOptions(column_names=_COLUMNS, block_size=1 << 22)
    types = {name: pa.string() for name in _COLUMNS} | {"number": pa.int64()}
    try:
        parse = pyarrow.csv.ParseOptions(delimiter=" ", quote_char=False)
        with pyarrow.csv.open_csv(path, read, parse, pyarrow.csv.ConvertOptions(column_types=types)) as file:
            yield from (_converted(path, batch) for batch in file)
    except (OSError, pa.ArrowException) as error:
        raise InvalidArgument(f"{path} cannot be read as a gadget.log: {error}") from error


def _converted(path: Path, lines: pa.RecordBatch) -> pa.RecordBatch:
    names = pa.array([*_OPERATIONS, *_OTHERS])
    codes = pc.index_in(lines["operation"], names)
    if codes.null_count:
        row = int(np.argmax(np.asarray(codes.is_null())))
        unknown, number = lines["operation"][row].as_py(), lines["number"][row].as_py()
        raise InvalidArgument(f"{path}: access {number} is {unknown!r}; it must be one of {', '.join(names.to_pylist())}")
    lines = lines.filter(pc.less(codes, len(_OPERATIONS)))
    codes = np.asarray(codes.filter(pc.less(codes, len(_OPERATIONS))))
    operation = np.array(list(_OPERATIONS.values()), np.uint8)[codes]
    length = np.asarray(pc.fill_null(pc.binary_length(lines["value"]), 0).cast(pa.int64()))
    size = np.where((operation == PUT) | (operation == MERGE), length, 0)
    key, none = identities([lines["key"]], lines.num_rows, "00" * 16)[1], np.zeros(lines.num_rows, np.int64)
    return pa.RecordBatch.from_arrays(
        [pa.array(each) for each in (operation, none.astype(np.uint8), key, none, none, size, np.asarray(lines["number"]))],
        schema=SCHEMA,
    )
