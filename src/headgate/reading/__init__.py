"""From what people write to values: every mistake is found, and each is told where it is and what to write instead."""
