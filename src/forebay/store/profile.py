"""What a store has seen of windows whose function tells nothing: whether keys share them, and so how they are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from forebay.access_patterns import Pattern
from forebay.store.key_index import KeyIndex

_SHARED = 8
"""Windows are aligned when so many keys, on average, have a window with the same bounds."""


@dataclass(frozen=True)
class Profile:
    """Open windows as they were seen.

    Attributes
    ----------
    windows : int
        Open windows, each of one key.
    bounds : int
        Distinct pairs of start and end among them.
    """

    windows: int
    bounds: int

    @classmethod
    def of(cls, indexes: Iterable[KeyIndex]) -> Profile:
        """The windows that are open in some stores.

        Examples
        --------
        >>> index, keys = KeyIndex(), np.arange(20)
        >>> _ = index.place_exact(keys, keys, keys // 10 * 5, keys // 10 * 5 + 5)
        >>> Profile.of([index])
        Profile(windows=20, bounds=2)
        >>> Profile.of([index]).aligned
        True
        """
        seen = [index.windows(index.live()) for index in indexes]
        together = np.concatenate(seen) if seen else np.empty((0, 2), np.int64)
        return cls(len(together), len(np.unique(together, axis=0)))

    @property
    def aligned(self) -> bool:
        """Whether many keys share each window, so that windows are read for all keys together."""
        return self.bounds > 0 and self.windows >= _SHARED * self.bounds

    @property
    def advice(self) -> str:
        """The pattern that was seen, in words, with the hint that fits it."""
        if not self.windows:
            return "no open windows seen yet"
        pattern = f"aligned ({Pattern.AAR.value})" if self.aligned else f"unaligned ({Pattern.AUR.value})"
        hint = "; hint='aligned' would store them with no work per key" if self.aligned else ""
        return f"{self.windows} open windows of {self.bounds} different bounds: {pattern}{hint}"
