"""The hashes that sketches of Spark and of Apache DataSketches go by, compiled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.compiling import in_place

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


def buffers_of(values: pl.Series) -> tuple[Bytes, Offsets]:
    """The bytes of strings or binaries without NULLs, one after the other, and where each begins and ends."""
    array = values.cast(pl.Binary).to_arrow().cast(pa.large_binary())
    bounds = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    return data, bounds


def each(values: pl.Series, kernel: Callable[..., None], *arguments: int) -> npt.NDArray[np.uint32]:
    """What a kernel finds of each value: of its bytes, or of the eight bytes of an integer."""
    found = np.empty(len(values), np.uint32)
    if values.dtype in (pl.String, pl.Binary):
        kernel(*buffers_of(values), *arguments, found)
    else:
        data = values.cast(pl.Int64).to_numpy().astype("<i8").view(np.uint8)
        kernel(data, np.arange(len(values) + 1) * 8, *arguments, found)
    return found


@in_place
def coupons(data, bounds, seed, found):
    """What a HyperLogLog of DataSketches is given of each value: 26 bits of a slot, and above them 6 of a rank."""
    for row in range(len(found)):
        low, high = _murmur128(data, bounds[row], bounds[row + 1], np.uint64(seed))
        zeros = np.uint64(0)
        while zeros < np.uint64(62) and (high >> (np.uint64(63) - zeros)) & np.uint64(1) == np.uint64(0):
            zeros += np.uint64(1)
        found[row] = (zeros + np.uint64(1)) << np.uint64(26) | (low & np.uint64(0x3FFFFFF))


@in_place
def _word(data, begin, end):
    """Up to eight bytes as a little-endian number."""
    word = np.uint64(0)
    for place in range(begin, end):
        word |= np.uint64(data[place]) << np.uint64(8 * (place - begin))
    return word


@in_place
def _rotated(word, bits):
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@in_place
def mixed(word):
    """A 64-bit word each of whose bits depends on all bits of another one: the last step of MurmurHash3."""
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xFF51AFD7ED558CCD)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@in_place
def _murmur128(data, begin, end, seed):
    """MurmurHash3, x64, 128 bits."""
    first, second = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
    one = two = seed
    place = begin
    while end - place >= 16:
        one ^= _rotated(_word(data, place, place + 8) * first, 31) * second
        one = (_rotated(one, 27) + two) * np.uint64(5) + np.uint64(0x52DCE729)
        two ^= _rotated(_word(data, place + 8, place + 16) * second, 33) * first
        two = (_rotated(two, 31) + one) * np.uint64(5) + np.uint64(0x38495AB5)
        place += 16
    if end - place > 8:
        two ^= _rotated(_word(data, place + 8, end) * second, 33) * first
    if end > place:
        one ^= _rotated(_word(data, place, min(end, place + 8)) * first, 31) * second
    one ^= np.uint64(end - begin)
    two ^= np.uint64(end - begin)
    one += two
    two += one
    one, two = mixed(one), mixed(two)
    one += two
    return one, two + one


_MASK = np.uint64(0xFFFFFFFF)


@in_place
def murmur32(data, bounds, seeds, found):
    """MurmurHash3 of 32 bits as Spark has it: bytes after the last whole word are mixed in one by one, with their sign."""
    for row in range(len(found)):
        begin, end = bounds[row], bounds[row + 1]
        hashed = np.uint64(seeds[row]) & _MASK
        whole = end - (end - begin) % 4
        for place in range(begin, whole, 4):
            hashed = _mixed_in(hashed, _word(data, place, place + 4))
        for place in range(whole, end):
            hashed = _mixed_in(hashed, np.uint64(np.int64(np.int8(data[place]))) & _MASK)
        hashed ^= np.uint64(end - begin)
        hashed ^= hashed >> np.uint64(16)
        hashed = hashed * np.uint64(0x85EBCA6B) & _MASK
        hashed ^= hashed >> np.uint64(13)
        hashed = hashed * np.uint64(0xC2B2AE35) & _MASK
        found[row] = np.int32(np.uint32(hashed ^ (hashed >> np.uint64(16))))


@in_place
def _mixed_in(hashed, word):
    hashed ^= _rotated32(word * np.uint64(0xCC9E2D51) & _MASK, 15) * np.uint64(0x1B873593) & _MASK
    return _rotated32(hashed, 13) * np.uint64(5) + np.uint64(0xE6546B64) & _MASK


@in_place
def _rotated32(word, bits):
    return (word << np.uint64(bits) | word >> np.uint64(32 - bits)) & _MASK
