"""Where rules, tiers and plans are kept: in files, in a database, in Redis. port.py says what each of them promises."""
