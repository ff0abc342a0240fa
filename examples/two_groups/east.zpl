# A broker of group east: its identity, data directory and ports are given on the command line.
group = east
# The groups that serve clients of the east when no broker of the east can; in order, if there are several.
fallback_groups = west
state = active
# May change the network document: the first broker of a network must, others may.
config_service = true
default_heartbeat_interval = 1
