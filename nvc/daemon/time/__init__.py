"""Keeps time from outside of the tenants, by the driver's own scheduler, which nvc.kernel.rm speaks to."""
