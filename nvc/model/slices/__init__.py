"""Values and file formats of slices: sizes, time settings, variables, entry, quota and ledger."""
