"""Detects violations: compares NVML's figures with ledgers, quotas and leases."""
