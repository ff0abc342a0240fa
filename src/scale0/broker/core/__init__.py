"""A broker without I/O: connections, members, the scheduler, requests and their queues."""
