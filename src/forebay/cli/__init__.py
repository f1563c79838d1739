"""Internal: the command line, ``forebay``. Its commands are in `nexmark` and `state`; `app` puts them together."""
