"""What an operator writes: settings from a file and the environment, checked as a whole."""
