"""Checks, whatever the protocol: forms, preparation, decisions and responses."""
