"""The end of a program that submits tasks."""
