"""Settings from a file and the environment, validated together."""
