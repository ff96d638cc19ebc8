"""Books of open reservations, beside the counters of a store."""
