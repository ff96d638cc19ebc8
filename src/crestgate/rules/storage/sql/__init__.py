"""Rules in a database: SQLite, MariaDB, MySQL or PostgreSQL. See repository.py."""
