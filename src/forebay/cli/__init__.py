"""Internal: the command line, ``forebay``. `app` puts the commands of the other modules together."""
