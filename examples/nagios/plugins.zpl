# The end of an agent's own file: the plugins that may run on this host, and the form of their commands.
# {name} is replaced by an argument of the check, {name=default} is optional; each is one word, no shell is involved.
plugins
    name = cpu-load
    command = /usr/lib/nagios/plugins/check_load -w {warn=50,40,30} -c {crit=100,80,60}
plugins
    name = users
    command = /usr/lib/nagios/plugins/check_users -w {warn=5} -c {crit=10}
plugins
    name = file-age
    command = /usr/lib/nagios/plugins/check_file_age -w {warn} -c {crit} -f {path}
