"""Whose turn it is on each device: the index of slices, accounts, one arbiter for each device, and gangs."""
