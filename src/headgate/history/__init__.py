"""How many were let through and how many were not: per minute for a month, per hour for a year."""
