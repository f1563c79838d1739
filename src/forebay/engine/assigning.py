"""Windows of a user's own: what the functions of a custom window say of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.aggregates.user_defined import failure, name_of
from forebay.errors import InvalidArgument
from forebay.windows import END, ETT, START, CustomWindows, Times


def assigned(windows: CustomWindows, times: Times) -> dict[str, pa.Array]:
    """Bounds of the windows of rows, as a user assigns them."""
    given = _called("assigner", windows.assigner, times)
    try:
        start, end = given
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"the assigner of fb.custom_window did not give two arrays: {error}") from error
    columns = {START: _instants(start, times, "starts"), END: _instants(end, times, "ends")}
    if (np.asarray(columns[END]) < np.asarray(columns[START])).any():
        raise InvalidArgument("the assigner of fb.custom_window gave a window whose end is before its start")
    return columns


def placement(windows: CustomWindows, times: Times) -> dict[str, pa.Array]:
    """Bounds of the windows of rows, and estimated trigger times if there are such."""
    columns = assigned(windows, times)
    if windows.ett is not None:
        bounds = (np.asarray(columns[START]), np.asarray(columns[END]))
        columns[ETT] = _instants(_called("ett", windows.ett, *bounds, times), times, "estimated trigger times")
    return columns


def _called(what: str, function: Callable[..., Any], *arguments: Times) -> Any:
    """What a function of a custom window gives; an error of ours that names it if it raises one."""
    try:
        return function(*arguments)
    except BaseException as error:  # sys.exit() raises no Exception
        whose = f"{len(arguments[-1])} instants"
        raise failure(f"the {what} {name_of(function)} of fb.custom_window", whose, error) from error


def _instants(values: npt.ArrayLike, times: Times, what: str) -> pa.Array:
    array = np.asarray(values)
    if array.shape != times.shape or array.dtype.kind not in "iu":
        raise InvalidArgument(
            f"a function of fb.custom_window gave {what} as {array.dtype} of shape {array.shape}; for {len(times)} instants "
            f"it must give whole microseconds, of shape {times.shape}"
        )
    return pa.array(array.astype(np.int64))
