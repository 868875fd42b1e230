"""How slices share a device's time: device policies, entitlements, and measured utilization."""
