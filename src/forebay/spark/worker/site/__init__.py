"""The directory that `forebay.configure` puts on the path of the processes that Spark starts."""
