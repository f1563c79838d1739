"""The identity of a key: 128 bits by which a store finds the windows of the key, instead of by its values.

Identities are SipHash-2-4 with a result of 128 bits, under a secret that each store has of its own. Keys come from outside,
and whoever chooses them must not be able to choose two that are taken for one: without the secret nobody can compute an
identity, and two keys out of a billion have the same one with a probability below 10^-20.

A key is hashed as a sequence of 64-bit words, which no other key of the same types has. A value is the word 0 if it is NULL.
Otherwise it is

* one more than its number of bytes, and the bytes, filled up with zeros (strings and binaries);
* one more than its number of elements, and the identities of the elements (lists);
* 1, and the values of the fields (structs; of a NULL one, 0 and the values of its fields as if they were NULL);
* 1, and one word, or two for a decimal (everything else).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.compiling import compiled, in_place, read_only

Words = npt.NDArray[np.uint64]

SECRET_BYTES = 16

_START = np.array([0x736F6D6570736575, 0x646F72616E646F6D ^ 0xEE, 0x6C7967656E657261, 0x7465646279746573], np.uint64)


def new_secret() -> str:
    """A fresh secret, as hexadecimal digits."""
    return secrets.token_hex(SECRET_BYTES)


def identities(columns: Sequence[pa.Array], rows: int, secret: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The identities of keys, as two arrays of 64 bits each.

    Parameters
    ----------
    columns : sequence of pyarrow.Array
        The columns of the keys, of types that Spark can group by. NaN equals NaN and -0.0 equals 0.0, as in Spark.
    rows : int
        How many keys there are.
    secret : str
        The secret of the store, 32 hexadecimal digits.

    Examples
    --------
    >>> columns = [pa.array(["ann", "bob", "ann"]), pa.array([1, 1, 1])]
    >>> high, low = identities(columns, 3, "00" * 16)
    >>> bool(high[0] == high[2] and low[0] == low[2]), bool(high[0] == high[1] or low[0] == low[1])
    (True, False)
    """
    high, low = _digests(columns, rows, np.frombuffer(bytes.fromhex(secret), "<u8"))
    return high.view(np.int64), low.view(np.int64)


def _digests(columns: Sequence[pa.Array], rows: int, secret: Words) -> tuple[Words, Words]:
    states = np.zeros((rows, 5), np.uint64)  # v0 to v3 of SipHash, and how many words went in
    states[:, :4] = _START ^ np.tile(secret, 2)
    for column in columns:
        _absorb(states, column, secret)
    return _finished(states)


def _absorb(states: Words, column: pa.Array, secret: Words) -> None:
    """Add a value to each of some sequences."""
    kind = column.type
    valid = np.ones(len(column), np.bool_) if not column.null_count else np.asarray(column.is_valid())
    if pa.types.is_struct(kind):
        _absorb_words(states, valid, read_only(np.empty((len(column), 0), np.uint64)))
        for field in column.flatten():
            _absorb(states, field, secret)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        elements = column.flatten()
        words = np.stack(_digests([elements], len(elements), secret), axis=1)
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        _absorb_lists(states, valid, _offsets(lengths), words)
    elif pa.types.is_large_binary(kind):
        _, offsets, data = column.buffers()
        places = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        _absorb_bytes(states, valid, read_only(places), read_only(np.frombuffer(data or b"", np.uint8)))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        _absorb(states, column.cast(pa.large_binary()), secret)
    else:
        _absorb_words(states, valid, read_only(_fixed(column)))


def _fixed(column: pa.Array) -> Words:
    """The words of values of a fixed width, a row each."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        return np.frombuffer(column.buffers()[1].slice(16 * column.offset, 16 * len(column)), np.uint64).reshape(-1, 2)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_floating(kind):
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
        values[np.isnan(values)] = np.nan
        column = pa.array(values).view(pa.int64())
    elif not pa.types.is_integer(kind):  # dates, times, durations
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return pc.fill_null(column, 0).cast(pa.int64()).to_numpy().view(np.uint64).reshape(-1, 1)


def _offsets(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


@in_place
def _round(v0, v1, v2, v3):
    v0 += v1
    v1 = (v1 << np.uint64(13) | v1 >> np.uint64(51)) ^ v0
    v0 = v0 << np.uint64(32) | v0 >> np.uint64(32)
    v2 += v3
    v3 = (v3 << np.uint64(16) | v3 >> np.uint64(48)) ^ v2
    v0 += v3
    v3 = (v3 << np.uint64(21) | v3 >> np.uint64(43)) ^ v0
    v2 += v1
    v1 = (v1 << np.uint64(17) | v1 >> np.uint64(47)) ^ v2
    v2 = v2 << np.uint64(32) | v2 >> np.uint64(32)
    return v0, v1, v2, v3


@in_place
def _add(state, word):
    """Two rounds of SipHash with a word of the message."""
    v0, v1, v2, v3 = state[0], state[1], state[2], state[3] ^ word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    state[0], state[1], state[2], state[3] = v0 ^ word, v1, v2, v3
    state[4] += np.uint64(1)


@in_place
def _absorb_words(states, valid, words):
    for row in range(len(states)):
        _add(states[row], np.uint64(valid[row]))
        if valid[row]:
            for place in range(words.shape[1]):
                _add(states[row], words[row, place])


@in_place
def _absorb_lists(states, valid, offsets, words):
    for row in range(len(states)):
        if not valid[row]:
            _add(states[row], np.uint64(0))
            continue
        _add(states[row], np.uint64(1 + offsets[row + 1] - offsets[row]))
        for element in range(offsets[row], offsets[row + 1]):
            _add(states[row], words[element, 0])
            _add(states[row], words[element, 1])


@in_place
def _absorb_bytes(states, valid, offsets, data):
    for row in range(len(states)):
        if not valid[row]:
            _add(states[row], np.uint64(0))
            continue
        begin, end = offsets[row], offsets[row + 1]
        _add(states[row], np.uint64(1 + end - begin))
        while begin < end:
            word = np.uint64(0)
            for place in range(min(8, end - begin)):
                word |= np.uint64(data[begin + place]) << np.uint64(8 * place)
            _add(states[row], word)
            begin += 8


@compiled
def _finished(states):
    high, low = np.empty(len(states), np.uint64), np.empty(len(states), np.uint64)
    for row in range(len(states)):
        state = states[row]
        _add(state, state[4] << np.uint64(3) << np.uint64(56))  # the length in bytes, in the last byte
        v0, v1, v2, v3 = state[0], state[1], state[2] ^ np.uint64(0xEE), state[3]
        for _ in range(4):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        high[row] = v0 ^ v1 ^ v2 ^ v3
        v1 ^= np.uint64(0xDD)
        for _ in range(4):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        low[row] = v0 ^ v1 ^ v2 ^ v3
    return high, low
