"""The pages, one module each: `ROUTES` are theirs."""
