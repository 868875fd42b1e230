"""Values and file formats of slices: sizes, shares, variables, the registry's entry, the quota, the ledger."""
