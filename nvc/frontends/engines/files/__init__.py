"""Files of configuration that belong to somebody else: where they are, how keys are set, and how that is undone."""
