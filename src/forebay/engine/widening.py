"""Which types have all values of another one. Apart from what uses it, because it must not import polars."""

import re

_DECIMAL = re.compile(r"decimal(?:128)?\((\d+), ?(\d+)\)")
_LIST = re.compile(r"(?:large_list|list|array)<(?:item: |element: )?(.*)>")
_INTEGERS = (("tinyint", "smallint", "int", "bigint"), ("int8", "int16", "int32", "int64"))


def widens(old: str, new: str) -> bool:
    """Whether every value of one type is a value of another, by the types' names in Spark or in Arrow.

    Integers become longer ones, floats doubles; decimals get more digits before the point, but not beyond 28 in all, where
    sums are stored in another way. Lists of such values too.

    Examples
    --------
    >>> widens("int", "bigint"), widens("bigint", "int"), widens("decimal(10,2)", "decimal(12,2)")
    (True, False, True)
    """
    if old == new:
        return True
    for names in _INTEGERS:
        if old in names:
            return new in names[names.index(old) :]
    if old == "float":
        return new == "double"
    elements = _LIST.fullmatch(old), _LIST.fullmatch(new)
    if elements[0] and elements[1]:
        return widens(elements[0][1], elements[1][1])
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before is None or after is None or before[2] != after[2]:
        return False
    digits, more = int(before[1]), int(after[1])
    return digits <= more and (digits > 28) == (more > 28)
