"""How slices are shown: tables, the interactive `top`, its history, and drawings."""
