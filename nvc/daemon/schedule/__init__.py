"""The slices of each device, what is in force there, and the pace of those that run at the same time."""
