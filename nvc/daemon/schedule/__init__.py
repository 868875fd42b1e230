"""Which slice has the lease of each device: an index of slices, accounts, an arbiter for each device, and gangs."""
