"""What happened: events and their journal (`events`), and segments, the files that keep it (`segments`)."""
