"""Rules in Redis or Valkey. layout.py says where they lie, repository.py how they are read and written."""
