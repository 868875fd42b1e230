"""nvc-runtime: edits a bundle's config.json, so that a low-level runtime that reads it gives the container GPUs."""
