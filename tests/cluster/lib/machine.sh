# What the cluster changes on the machine, and putting it back. Sourced after pods.sh.

# The kubelet sets these for the whole machine.
changed_sysctls=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes)

machine_save() {
  local name
  for name in "${changed_sysctls[@]}"; do echo "$name=$(sysctl -n "$name")"; done >"$RUN/sysctls.new"
  [ -d /run/netns ] || : >"$RUN/no-netns-before"
  mv "$RUN/sysctls.new" "$RUN/sysctls"
}
machine_restore() {
  [ ! -e "$RUN/sysctls" ] || sysctl -q -p "$RUN/sysctls"
  # "ip netns" makes this folder a mount of its own.
  if [ -e "$RUN/no-netns-before" ] && [ -d /run/netns ] && [ -z "$(ls -A /run/netns)" ]; then
    umount /run/netns 2>/dev/null || true
    rmdir /run/netns
  fi
}

# Is anything there, whole or in part?
has_traces() {
  local path
  for path in "$RUN" /run/netns/hello-*; do [ ! -e "$path" ] || return 0; done
  ip link show hello0 >/dev/null 2>&1 || [ -n "$(cgroup_folders '*')" ]
}

# Removes every trace, of a whole cluster as of a half-started one: what is there decides, not what was written down.
remove_all() {
  local mount
  [ ! -e "$RUN" ] || [ -e "$RUN/.local-cluster" ] || [ -z "$(ls -A "$RUN")" ] || die "$RUN is not a run folder of this script; it stays as it is"
  network_delete
  { grep -o " $RUN/[^ ]*" /proc/mounts || true; } | sort -r | while read -r mount; do umount -l "$mount"; done
  await 20 "the nodes' cgroups to be empty" remove_cgroups '*'
  machine_restore
  rm -rf "$RUN"
}
