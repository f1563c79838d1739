"""Which types have all values of another one. Apart from what uses it, because it must not import polars."""

import re

_DECIMAL = re.compile(r"decimal(?:128)?\((\d+), ?(\d+)\)")
_LIST = re.compile(r"(?:large_list|list|array)<(?:item: |element: )?(.*)>")
_STRUCT = re.compile(r"struct<(.*)>")
_INTEGERS = (("tinyint", "smallint", "int", "bigint"), ("int8", "int16", "int32", "int64"))


def widens(old: str, new: str) -> bool:
    """Whether every value of one type is a value of another, by the types' names in Spark or in Arrow.

    Integers become longer ones, floats doubles; decimals get more digits before the point, but not beyond 28 in all, where
    sums are stored in another way. Lists and structs of such values too.

    Examples
    --------
    >>> widens("int", "bigint"), widens("bigint", "int"), widens("decimal(10,2)", "decimal(12,2)")
    (True, False, True)
    >>> widens("array<struct<item:int,count:bigint>>", "array<struct<item:bigint,count:bigint>>")
    True
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
    structs = _STRUCT.fullmatch(old), _STRUCT.fullmatch(new)
    if structs[0] and structs[1]:
        fields = _fields(structs[0][1]), _fields(structs[1][1])
        return [name for name, _ in fields[0]] == [name for name, _ in fields[1]] and all(
            widens(had, has) for (_, had), (_, has) in zip(*fields, strict=True)
        )
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before is None or after is None or before[2] != after[2]:
        return False
    digits, more = int(before[1]), int(after[1])
    return digits <= more and (digits > 28) == (more > 28)


def _fields(text: str) -> list[tuple[str, str]]:
    """The names and types of a struct's fields, from what is between its brackets."""
    fields, depth = [""], 0
    for character in text:
        depth += "<(".find(character) >= 0
        depth -= ">)".find(character) >= 0
        if character == "," and depth == 0:
            fields.append("")
        else:
            fields[-1] += character
    parts = [field.partition(":") for field in fields]
    return [(name.strip(), kind.strip()) for name, _, kind in parts]
