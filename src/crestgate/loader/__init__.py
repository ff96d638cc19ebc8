"""Configuration loading: YAML with line numbers, environment variables, and error messages with a remedy."""
