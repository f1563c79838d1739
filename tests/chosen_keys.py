"""Keys that somebody chose so that a known hash cannot tell them apart."""

import struct

import numpy as np

MASK = (1 << 64) - 1
P1, P2 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F


def chosen_keys(pairs, seed=1):
    """Pairs of 64-byte keys of which xxhash64 cannot tell many apart, whatever its seed is."""
    numbers, found = np.random.default_rng(seed), []
    for sign in (1, -1) * (pairs // 2):
        words = [int(word) for word in numbers.integers(0, 2**64, 8, np.uint64)]
        twin = [words[0] ^ 1 << 63, *words[1:4], (words[4] + sign * (P1 * pow(P2, -1, 2**64) << 30)) & MASK, *words[5:]]
        found.append(tuple(struct.pack("<8Q", *each) for each in (words, twin)))
    return found
