"""Who may call the service: the keys that people make, and the guard that asks for them."""
