"""HTTP headers, problem documents and client addresses."""
