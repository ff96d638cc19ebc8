"""What turns stores into limiters: names, plans, waiting, reservations, and what happens when a store fails."""
