"""Internal: operators over store instances, an operator in each module, free of Spark. Only `open` knows all kinds."""
