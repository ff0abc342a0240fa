# A broker of group east: its own identity, data folder and ports are given on the command line.
group = east
# Where clients of the east go when nobody of it can serve; in order, if there are several.
fallback_groups = west
state = active
# May change the network document: the first broker of a network must, others may.
config_service = true
default_heartbeat_interval = 1
