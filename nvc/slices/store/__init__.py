"""The slices of this host: their directories below /run/nvc, whose they are, which live, and what they use."""
