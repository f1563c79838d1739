"""What the processes of one application know of each other."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Application:
    """The settings that the driver gives to tasks, and these to agents. They travel with the operator, never in a conf.

    Attributes
    ----------
    name : str
        Spark's id of the application.
    manager : str
        ``host:port`` of the replication manager.
    secret : str
        What its processes recognize each other by.
    replicas : int
        How many other hosts must have a version before Spark learns of it.
    uploading : bool
        Whether versions go to the checkpoint behind that.
    port : int
        Where agents listen, 0 for any free port.
    copying : int
        Bytes in a second that an agent copies at most while no task waits for them.
    """

    name: str
    manager: str
    secret: str = field(repr=False)
    replicas: int = 1
    uploading: bool = True
    port: int = 0
    copying: int = 32 << 20
