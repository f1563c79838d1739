"""Internal, but for `listing`, which is public: the state store, free of any engine. No Spark here."""
