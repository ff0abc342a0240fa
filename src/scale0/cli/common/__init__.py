"""What several commands share: connections, output, errors."""
