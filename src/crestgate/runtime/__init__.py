"""Foundation of several packages: clocks, fork safety, sockets, store URLs."""
