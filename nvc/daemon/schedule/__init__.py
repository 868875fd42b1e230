"""Whose turn it is on each device: slices as arbiters know them, policies, accounts, arbiters, lookahead."""
