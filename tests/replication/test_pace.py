"""Copies that keep to a pace."""

import time

from forebay.replication.pace import Pace


def test_bytes_take_their_time_and_none_is_made_up_for():
    pace, began = Pace(1000), time.monotonic()
    pace.took(50)
    pace.took(50)
    assert time.monotonic() - began >= 0.1
    time.sleep(0.2)
    began = time.monotonic()
    pace.took(100)
    assert time.monotonic() - began >= 0.1
