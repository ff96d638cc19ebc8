"""Configuration loading: YAML with line numbers, environment variables, and problems that say what to write."""
