"""Other ways of saying what rules say: policies by key, a client's limits, strategies. Each is rules and back."""
