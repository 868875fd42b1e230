"""The command line `nvc-cli`: one file per command, no logic of its own. Installed as `nvc_cli`."""
