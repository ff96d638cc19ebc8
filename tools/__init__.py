"""What the Makefile calls. Standard library only: these programs install the rest."""
