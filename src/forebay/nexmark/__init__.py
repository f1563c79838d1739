"""Public: NEXMark, events of an online auction, and queries over them as a user of forebay writes them.

Examples
--------
>>> from forebay import nexmark
>>> nexmark.register(spark)
>>> bids = spark.readStream.format("nexmark").option("type", "bid").load().withWatermark("dateTime", "3 seconds")
>>> nexmark.queries.q11(bids).columns
['session_window', 'bidder', 'bids']
"""

from forebay.nexmark import queries
from forebay.nexmark.config import NexmarkConfig
from forebay.nexmark.generator import generate
from forebay.nexmark.source import register

__all__ = ["NexmarkConfig", "generate", "queries", "register"]
