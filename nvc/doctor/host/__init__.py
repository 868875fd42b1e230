"""Checks of the host: driver, nodes, engines, specifications, configuration, slices."""
