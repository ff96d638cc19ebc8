"""Store of counters, plans and rules in a Crestgate service, over HTTP."""
