"""Usage history: how much was allowed and denied, by minute and hour."""
