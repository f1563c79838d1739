"""Public: every error that forebay raises. Each message says what happened, why, and what to do about it."""

from __future__ import annotations


class ForebayError(Exception):
    """Base of all errors of this library."""


class InvalidArgument(ForebayError, ValueError):
    """An argument has a value that the call cannot use (a malformed duration, a wrong aggregate argument)."""


class UnknownColumn(InvalidArgument):
    """A column name that the DataFrame does not have."""


class UnsupportedType(ForebayError, TypeError):
    """A column's type cannot be used in that place."""


class MissingWatermark(ForebayError):
    """The time column of a stream has no watermark, so no window could ever fire."""


class UnsupportedConfiguration(ForebayError):
    """The Spark session or one of its settings cannot run a forebay query."""


class StateDirectoryError(ForebayError, OSError):
    """The state directory cannot be found, read or written (permissions, a full disk).

    Operator action: free or mount the disk, then start the query again. The last committed version is intact.
    """


class VersionNotFound(ForebayError):
    """The version that Spark's checkpoint names is not in the state directory.

    Operator action: restore the state directory that belongs to the checkpoint; both are one unit.
    """


class CorruptState(ForebayError):
    """A state file is damaged: too short, or its checksum does not match.

    Operator action: restore the named file, or the checkpoint with its state directory, from a copy.
    """


class LayoutChanged(ForebayError):
    """The checkpoint was written by an operator with other keys, or other windows, or what else may not change under one.

    What may is in "Changing a query" of ``docs/semantics.md``.
    """


class ArithmeticOverflow(ForebayError, ArithmeticError):
    """A sum left the range of its type while ``spark.sql.ansi.enabled`` is true."""


class ProcessorFailed(ForebayError):
    """A user's function has raised an error: that of ``fb.apply``, the processor of a buffer, or a custom window's.

    Or what it has returned does not fit its schema.

    Operator action: correct the function and start the query again. The last committed version is intact.
    """


class ReplicationError(ForebayError):
    """An agent that keeps replicas, or the manager of replicas, cannot be used.

    A micro-batch goes on without it where it can: its state is then safe in the checkpoint before Spark learns of it.
    """


class HandoverError(ForebayError):
    """A handover of state partitions was given up; the query goes on as it was.

    Operator action: none for the query. The message says what stood in the way; then the handover can be asked for again.
    """
