"""How slices share the time of a device: the operator's settings for each device, and each slice's entitlement."""
