"""The API server: how it is reached, and what the plugin reads and writes there."""
