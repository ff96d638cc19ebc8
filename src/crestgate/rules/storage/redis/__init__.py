"""Rules in Redis or Valkey. layout.py defines the keys, repository.py reads and writes them."""
