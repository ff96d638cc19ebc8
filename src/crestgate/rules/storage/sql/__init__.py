"""Rules in a database: SQLite, MariaDB, MySQL or PostgreSQL. repository.py tells how."""
