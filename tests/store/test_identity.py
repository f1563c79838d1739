"""Identities of keys against SipHash as it is defined, and against keys that were made to collide."""

import datetime
import decimal
import itertools
import math
import struct

import numpy as np
import pyarrow as pa
import pytest

from chosen_keys import chosen_keys
from forebay.store.identity import identities, new_secret

KEY = bytes(range(16))
SECRET = KEY.hex()
MASK = (1 << 64) - 1


def sip_hash(key, message):
    """SipHash-2-4 with a result of 128 bits, word by word as its authors define it."""

    def rotated(x, by):
        return (x << by | x >> 64 - by) & MASK

    def rounds(v, count):
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[2] = (v[2] + v[3]) & MASK
            v[1], v[3] = rotated(v[1], 13) ^ v[0], rotated(v[3], 16) ^ v[2]
            v[0] = (rotated(v[0], 32) + v[3]) & MASK
            v[2] = (v[2] + v[1]) & MASK
            v[1], v[3] = rotated(v[1], 17) ^ v[2], rotated(v[3], 21) ^ v[0]
            v[2] = rotated(v[2], 32)

    k0, k1 = struct.unpack("<QQ", key)
    start = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [word ^ k for word, k in zip(start, (k0, k1, k0, k1), strict=True)]
    v[1] ^= 0xEE
    padded = message + b"\0" * (7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(v, 4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(v, 4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


def identity(*columns, secret=SECRET):
    high, low = identities(columns, len(columns[0]) if columns else 1, secret)
    return [struct.pack("<qq", *pair) for pair in zip(high.tolist(), low.tolist(), strict=True)]


def test_the_reference_is_sip_hash():
    """What `openssl mac -macopt size:16 SIPHASH` prints of the key 00 to 0f, and of nothing and the bytes 00 to 07."""
    assert sip_hash(KEY, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert sip_hash(KEY, bytes(range(8))).hex() == "3b62a9ba6258f5610f83e264f31497b4"


def test_identities_are_sip_hash():
    words = lambda *values: struct.pack(f"<{len(values)}q", *values)  # noqa: E731
    assert identity() == [sip_hash(KEY, b"")]
    numbers = pa.array([5, None, -1], pa.int32())
    assert identity(numbers) == [sip_hash(KEY, words(*value)) for value in ((1, 5), (0,), (1, -1))]
    texts = pa.array(["", "a", "12345678", "123456789", None])
    encoded = [words(1), words(2) + b"a".ljust(8, b"\0"), words(9) + b"12345678", words(10) + b"123456789".ljust(16, b"\0")]
    assert identity(texts) == [sip_hash(KEY, message) for message in (*encoded, words(0))]
    long = pa.array(["x" * 5000])
    assert identity(long) == [sip_hash(KEY, words(5001) + b"x" * 5000)]
    lists = pa.array([[7, None], [], None])
    seven, none = sip_hash(KEY, words(1, 7)), sip_hash(KEY, words(0))
    assert identity(lists) == [sip_hash(KEY, message) for message in (words(3) + seven + none, words(1), words(0))]


STRUCT = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))])
VALUES = {
    "boolean": pa.array([True, False, None]),
    "byte": pa.array([1, -1, 0, None], pa.int8()),
    "long": pa.array([1, 2**63 - 1, -(2**63), 0, None], pa.int64()),
    "float": pa.array([0.0, 1.5, math.inf, math.nan, None], pa.float32()),
    "decimal": pa.array([decimal.Decimal(n) for n in (1, -1, 10**25, 2**64 + 1)] + [None], pa.decimal128(38, 2)),
    "string": pa.array(["", "a", "a\0", "aa", "ä", "a" * 8, "a" * 9, "a" * 17, None]),
    "binary": pa.array([b"", b"\0", b"\0\0", b"\0" * 8, b"\0" * 9, None]),
    "date": pa.array([datetime.date(1969, 12, 31), datetime.date(2024, 1, 1), None]),
    "timestamp": pa.array([-1, 0, 1, None], pa.timestamp("us", "UTC")),
    "interval": pa.array([-1, 0, 1, None], pa.duration("us")),
    "list": pa.array([[], [0.0], [None], [0.0, None], [None, 0.0], [math.nan], None]),
    "nested": pa.array(
        [[], [[]], [[], []], [["a"]], [["a"], []], [["", "a"]], [None], None], pa.list_(pa.list_(pa.string()))
    ),
    "struct": pa.array(
        [{"a": 1, "b": []}, {"a": None, "b": []}, {"a": None, "b": None}, {"a": 1, "b": [1.0]}, None], STRUCT
    ),
}


@pytest.mark.parametrize("kind", VALUES)
def test_keys_are_told_apart_by_all_of_their_values(kind):
    values = VALUES[kind]
    assert len({*identity(values)}) == len(values)
    assert identity(values.slice(1)) == identity(values)[1:]
    pairs = list(itertools.product(range(len(values)), repeat=2))
    first, second = (values.take(pa.array([pair[place] for pair in pairs])) for place in (0, 1))
    assert len({*identity(first, second)}) == len(pairs)
    together = pa.StructArray.from_arrays([first, second], ["x", "y"])
    assert len({*identity(together)}) == len(pairs)
    assert {*identity(values)}.isdisjoint(identity(values, secret=new_secret()))


def test_keys_that_spark_holds_equal_are_one():
    other = np.array([0x7FF8000000000123], np.uint64).view(np.float64)
    assert len({*identity(pa.array([math.nan, *other]))}) == 1
    assert len({*identity(pa.array([0.0, -0.0], pa.float32()))}) == 1
    assert len({*identity(pa.array([[0.0, 1.0], [-0.0, 1.0]]))}) == 1
    assert identity(pa.array(["a"])) == identity(pa.array(["a"], pa.large_string()))


def test_keys_that_were_chosen_to_collide():
    keys = [key for pair in chosen_keys(64) for key in pair]
    assert len({*identity(pa.array(keys))}) == len(keys)
