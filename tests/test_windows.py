import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forebay.windows import AlignedWindows


@st.composite
def window_functions(draw):
    slide = draw(st.integers(1, 40))
    size = draw(st.integers(slide, 200))
    return AlignedWindows(size, slide, draw(st.integers(-slide + 1, slide - 1)))


times = st.integers(-1000, 1000)


def containing(windows, time):
    """The starts of the windows that contain an instant, by the definition."""
    first = (time - windows.size - windows.offset) // windows.slide
    starts = [windows.offset + k * windows.slide for k in range(first - 1, first + 2 + windows.size // windows.slide + 2)]
    return {start for start in starts if start <= time < start + windows.size}


@given(window_functions(), times)
def test_windows_of_a_slice_are_those_that_contain_its_instants(windows, time):
    slices = windows.slice_starts(np.array([time]))
    assert slices[0] <= time < slices[0] + windows.slice_length
    expected = containing(windows, time)
    assert windows.last_window(slices)[0] == max(expected)
    assert windows.first_window(slices)[0] == min(expected)
    positions, starts = windows.placements(slices)
    assert starts.tolist() == sorted(expected, reverse=True)
    assert positions.tolist() == [0] * len(expected)
    earliest, latest = sorted(expected)[0], sorted(expected)[len(expected) // 2]
    some = windows.placements(np.append(slices, slices), (earliest, latest))[1].tolist()
    assert some == 2 * sorted((start for start in expected if start <= latest), reverse=True)


@given(window_functions(), st.lists(times, max_size=8), times, st.integers(0, 300))
def test_windows_between_are_those_that_end_there(windows, instants, after, span):
    slices = np.unique(windows.slice_starts(np.array(instants, dtype=np.int64)))
    due = windows.windows_between(slices, after, after + span)
    starts = {start for time in instants for start in containing(windows, time)}
    assert due == sorted(start for start in starts if after < start + windows.size <= after + span)


def test_windows_before_the_epoch():
    windows = AlignedWindows(10, 10)
    assert windows.windows_between(np.array([-20, 0, 10]), -1000, 10) == [-20, 0]
