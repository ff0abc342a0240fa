# A broker's own file. Start it with: scale0 broker --config broker.zpl
identity = east-1
bind = 127.0.0.1
frontend_port = 5700
backend_port = 5701
peer_port = 5702
config_pub_port = 5703
task_pub_port = 5704
state = active
default_heartbeat_interval = 1
heartbeat_liveness = 3
services = all
group = east
config_service = true
data_dir = var/east-1
group_config
    name = east
    brokers
        identity = east-1
        services = all
