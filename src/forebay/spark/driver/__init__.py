"""Internal: what a query is made of. What users call is here, and exported by `forebay`.

Workers import these modules, too, before they have limited the threads of polars; so functions import what imports polars.
"""
