"""What HTTP says of a decision, and what it is told of a client: for the service and for the middleware alike."""
