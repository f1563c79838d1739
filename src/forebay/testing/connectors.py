"""What every store must do that the harness drives."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest

from forebay.harness.access import GET, Operation, accesses
from forebay.harness.batched import serve
from forebay.harness.stores import Connector
from forebay.harness.stores.connector import MEMORY
from forebay.harness.stores.dictionary import Dictionary

WINDOW = 10
"""The length of all windows, so that stores pass that have aligned windows alone."""


class ConnectorTests(ABC):
    """Values by state key, which stay until they are deleted, and which a merge appends to.

    Examples
    --------
    >>> from forebay.harness.stores.dictionary import Dictionary
    >>> class TestDictionary(ConnectorTests):
    ...     def open(self, directory, memory):
    ...         return Dictionary(directory, memory)
    """

    @abstractmethod
    def open(self, directory: Path, memory: int) -> Connector:
        """An empty store that may take so many bytes of memory."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        """A store that is closed in the end."""
        store = self.open(tmp_path, MEMORY)
        yield store
        store.close()

    def keys(self, store: Connector, *keys: int, window: int = 0) -> list[Any]:
        """State keys of event keys within a window, as the store takes them."""
        rows = ((GET, 0, key, window * WINDOW, (window + 1) * WINDOW, 0, 0) for key in keys)
        return list(store.keys(accesses(rows)))

    def test_a_key_has_no_value_at_first(self, store: Connector) -> None:
        (ann,) = self.keys(store, 1)
        assert store.get(ann) is None
        store.delete(ann)
        assert store.get(ann) is None

    def test_a_put_replaces(self, store: Connector) -> None:
        ann, bob = self.keys(store, 1, 2)
        store.put(ann, b"one")
        store.put(ann, b"two")
        store.put(bob, b"three")
        assert store.get(ann) == b"two"
        assert store.get(bob) == b"three"

    def test_a_get_leaves_the_value(self, store: Connector) -> None:
        ann, bob = self.keys(store, 1, 2)
        store.put(ann, b"one")
        store.merge(bob, b"two")
        for _ in range(2):
            assert store.get(ann) == b"one"
            assert store.get(bob) == b"two"

    def test_a_merge_appends_in_order(self, store: Connector) -> None:
        ann, bob = self.keys(store, 1, 2)
        store.put(ann, b"a")
        for number in range(300):
            store.merge(ann, bytes([number % 256]))
            store.merge(bob, b"-")
        assert store.get(ann) == b"a" + bytes(number % 256 for number in range(300))
        assert store.get(bob) == b"-" * 300
        store.merge(ann, b"z")
        assert store.get(ann) == b"a" + bytes(number % 256 for number in range(300)) + b"z"

    def test_a_put_replaces_what_was_merged(self, store: Connector) -> None:
        (ann,) = self.keys(store, 1)
        store.merge(ann, b"one")
        store.merge(ann, b"two")
        store.put(ann, b"three")
        assert store.get(ann) == b"three"

    def test_a_deleted_key_begins_anew(self, store: Connector) -> None:
        (ann,) = self.keys(store, 1)
        store.merge(ann, b"one")
        store.merge(ann, b"two")
        store.delete(ann)
        assert store.get(ann) is None
        store.merge(ann, b"three")
        assert store.get(ann) == b"three"

    def test_keys_of_other_windows_are_others(self, store: Connector) -> None:
        keys = [self.keys(store, 1, window=window)[0] for window in range(5)]
        for window, key in enumerate(keys):
            store.merge(key, b"%d" % window)
        store.delete(keys[1])
        assert [store.get(key) for key in keys] == [b"0", None, b"2", b"3", b"4"]

    def test_negative_keys_and_empty_values(self, store: Connector) -> None:
        negative, zero = self.keys(store, -1, 0)
        store.put(negative, b"")
        assert store.get(negative) == b""
        assert store.get(zero) is None

    def test_more_than_fits_into_memory(self, tmp_path: Path) -> None:
        store = self.open(tmp_path, 1 << 20)
        keys = self.keys(store, *range(3000))
        for key in keys:
            store.merge(key, b"x" * 1000)
        for number in (0, 1500, 2999):
            assert store.get(keys[number]) == b"x" * 1000
        store.close()

    @pytest.mark.parametrize("seed", range(2))
    def test_random_operations_equal_a_model(self, store: Connector, seed: int) -> None:
        chance = random.Random(seed)
        keys = [key for window in range(3) for key in self.keys(store, *range(6), window=window)]
        model: dict[int, bytes] = {}
        for step in range(3000):
            number, action = chance.randrange(len(keys)), chance.random()
            value = b"%d," % step
            if action < 0.3:
                assert store.get(keys[number]) == model.get(number)
            elif action < 0.5:
                store.put(keys[number], value)
                model[number] = value
            elif action < 0.85:
                store.merge(keys[number], value)
                model[number] = model.get(number, b"") + value
            else:
                store.delete(keys[number])
                model.pop(number, None)
        for number, key in enumerate(keys):
            assert store.get(key) == model.get(number)

    @pytest.mark.parametrize("rows", [1, 37, 3000])
    def test_batches_find_what_accesses_find_one_by_one(self, store: Connector, rows: int) -> None:
        chance, model = random.Random(rows), Dictionary(Path(), MEMORY)
        keys = [key for window in range(3) for key in self.keys(store, *range(40), window=window)]
        operations = chance.choices(list(Operation), [4, 2, 6, 1], k=3000)
        for first in range(0, len(operations), rows):
            some = operations[first : first + rows]
            numbers = [chance.randrange(len(keys)) for _ in some]
            values = [b"%d," % (first + place) for place in range(len(some))]
            expected = []
            for operation, number, value in zip(some, numbers, values, strict=True):
                key = b"%d" % number
                if operation == Operation.GET:
                    expected.append(model.get(key))
                elif operation == Operation.DELETE:
                    model.delete(key)
                else:
                    (model.put if operation == Operation.PUT else model.merge)(key, value)
            assert serve(store, some, [keys[number] for number in numbers], values) == expected
        for number, key in enumerate(keys):
            assert store.get(key) == model.get(b"%d" % number)
