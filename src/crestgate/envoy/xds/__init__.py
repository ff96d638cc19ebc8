"""Client of envoyproxy/ratelimit's configuration discovery service: limits from a control plane instead of files."""
