"""The programs that OCI runtimes call: `nvc-hook` and `nvc-cdi-hook`. Installed as `nvc_hooks`."""
