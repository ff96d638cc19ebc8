"""One file for each version. A file is never changed once it has been released."""
