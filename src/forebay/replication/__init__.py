"""State on other hosts: replicas, after the Rhino paper's sections 3.3 and 4.2. Inside; free of Spark.

Each host has one agent process per application (`forebay.replication.agent`). It holds the files of versions that were
committed on its host, as hard links, and replicas of those of other hosts. A commit's new files go down a chain of agents
(`forebay.replication.chain`). The replication manager in the driver's process (`forebay.replication.manager`) says which
hosts are in whose chain. Tasks reach all of it through an archive (`forebay.replication.archive`).
"""
