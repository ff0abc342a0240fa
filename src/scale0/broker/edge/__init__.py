"""A broker's files: CURVE keys and whom they admit."""
