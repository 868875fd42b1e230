"""The timekeeper, nvcd's process that calls the driver: plans and messages, caps, accounts, the self-test."""
