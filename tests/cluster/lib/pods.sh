# Processes inside Pods, found on the nodes: works while the API server does not, and leaves no line in its log. Sourced after node.sh.

# Prints the cgroup folders of a container's running instances: one, or none.
container_cgroups() { # namespace pod container
  local number id root=/sys/fs/cgroup/pids
  ! unified_cgroups || root=/sys/fs/cgroup
  for number in $(node_numbers); do
    node_has_power "$number" || continue
    ctr --address "$RUN/node$number/run/containerd.sock" --namespace k8s.io containers ls -q \
      "labels.\"io.kubernetes.pod.namespace\"==\"$1\",labels.\"io.kubernetes.pod.name\"==\"$2\",labels.\"io.kubernetes.container.name\"==\"$3\"" |
      while read -r id; do find "$root/${PREFIX}-node$number" -type d -name "$id" -exec grep -q . {}/cgroup.procs \; -print; done
  done
}
# Prints the ids, as the machine sees them, of a container's processes.
container_processes() { # namespace pod container
  local cgroup
  cgroup=$(container_cgroups "$@")
  [ -n "$cgroup" ] || die "no running container '$3' in Pod $1/$2"
  cat "$cgroup/cgroup.procs"
}
# The process that is 1 in its own namespace: the last number of NSpid.
main_process() { # pid...
  local pid
  for pid in "$@"; do
    grep -qsE '^NSpid:.*\s1$' "/proc/$pid/status" && { echo "$pid"; return; }
  done
  die "the container's first process has ended"
}

pod_signal() { # namespace pod container signal [regular expression of a command line]
  local processes pid line chosen=()
  processes=$(container_processes "$1" "$2" "$3")
  # shellcheck disable=SC2086 # one argument per process
  if [ -z "${5:-}" ]; then
    chosen=("$(main_process $processes)")
  else
    for pid in $processes; do
      line=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") || continue
      [[ $line =~ $5 ]] && chosen+=("$pid")
    done
    ((${#chosen[@]})) || die "no process in container '$3' of Pod $1/$2 matches '$5'"
  fi
  kill -s "${4#SIG}" "${chosen[@]}"
}

# Runs a command inside a container, as its user and with its environment.
pod_exec() { # namespace pod container command...
  local processes pid user group environment=()
  processes=$(container_processes "$1" "$2" "$3")
  # shellcheck disable=SC2086 # one argument per process
  pid=$(main_process $processes)
  shift 3
  user=$(awk '/^Uid:/ {print $3}' "/proc/$pid/status")
  group=$(awk '/^Gid:/ {print $3}' "/proc/$pid/status")
  mapfile -d '' -t environment <"/proc/$pid/environ"
  exec nsenter -t "$pid" -m -p -n -u -i -r -w --setuid "$user" --setgid "$group" -- /usr/bin/env -i "${environment[@]}" "$@"
}

# The file system at a path of a container answers no write for so many seconds, then goes on: never for ever, because what
# waits for a disk cannot be killed, and nothing could be cleaned up.
pod_freeze_disk() { # namespace pod container path seconds
  local processes pid
  [[ $5 =~ ^[1-9][0-9]?$ ]] || die "between 1 and 99 seconds, not '$5'"
  processes=$(container_processes "$1" "$2" "$3")
  # shellcheck disable=SC2086 # one argument per process
  pid=$(main_process $processes)
  exec 8<"/proc/$pid/root$4"
  fsfreeze --freeze /proc/self/fd/8
  # shellcheck disable=SC2016 # expanded by the inner shell
  setsid bash -c 'sleep "$1"; fsfreeze --unfreeze /proc/self/fd/8' thaw "$5" </dev/null >/dev/null 2>&1 &
}
