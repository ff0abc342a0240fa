# A broker of group west. It joins by the address of one broker, and learns of all others from it.
group = west
fallback_groups = east
config_service = true
