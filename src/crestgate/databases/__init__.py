"""SQLAlchemy engines and redis-py clients that rules, locks and history share."""
