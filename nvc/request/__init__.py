"""What is asked for: a container's variables and bundle, the options of commands, the host's configuration."""
