"""The slices of this host: the registry below /run/nvc, which slices live, and what they use."""
