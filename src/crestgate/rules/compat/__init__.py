"""Other notations of rules, and their conversion: policies by key, limits of clients, strategies."""
