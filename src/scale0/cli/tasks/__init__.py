"""Commands about tasks and workers."""
