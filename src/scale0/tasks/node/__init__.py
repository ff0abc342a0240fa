"""The end of a program that runs tasks."""
