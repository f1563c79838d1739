"""What a commit of the unaligned store writes."""

import numpy as np

from forebay.store.options import Options
from forebay.store.unaligned import UnalignedStore


def test_a_change_of_few_windows_writes_few(tmp_path):
    """Of a key index with more slots than what any commit writes of changes alone."""
    options, keys = Options(1 << 22), np.arange(50_000)
    store = UnalignedStore(tmp_path, None, options)
    store.index.place_merging(keys, keys, keys, keys + 5)
    version = store.commit()
    for batch in range(20):
        store = UnalignedStore(tmp_path, version, options)
        some = keys[batch * 100 : batch * 100 + 100]
        store.index.place_merging(some, some, some + 5, some + 9)
        version = store.commit()
        assert sum(path.stat().st_size for path in tmp_path.glob(f"{version}*.arrow")) < 20_000
    index = UnalignedStore(tmp_path, version, options).index
    assert index.windows(index.live()).tolist() == [[key, key + 9 if key < 2000 else key + 5] for key in keys.tolist()]
