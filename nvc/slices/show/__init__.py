"""Shows slices: tables, the interactive `top`, its history, and drawings."""
