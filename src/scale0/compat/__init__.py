"""Other protocols on the same broker."""
