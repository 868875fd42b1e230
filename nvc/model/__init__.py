"""The values that stages hand on: facts of the host, requests, selections, and slices with their files."""
