# What the cluster changes on the machine, and putting it back. Sourced after pods.sh.

# The kubelet sets these for the whole machine, but the first.
changed_sysctls=(fs.inotify.max_user_instances vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes)

WATCHERS=1024

# Kept until the last cluster ends, because a second one finds the first one's values.
MACHINE_STATE=/run/hello-operator-machine

machine_save() {
  local name
  [ ! -e $MACHINE_STATE ] || return 0
  mkdir -p $MACHINE_STATE.new
  for name in "${changed_sysctls[@]}"; do echo "$name=$(sysctl -n "$name")"; done >$MACHINE_STATE.new/sysctls
  [ -d /run/netns ] || : >$MACHINE_STATE.new/no-netns-before
  mv $MACHINE_STATE.new $MACHINE_STATE
  # Each node's kubelet, containerd and agents watch files as the same user; many distributions allow 128 in all.
  (($(sysctl -n fs.inotify.max_user_instances) >= WATCHERS)) || sysctl -qw fs.inotify.max_user_instances=$WATCHERS
}
machine_is_changed() { # and no cluster needs it so
  local network
  for network in /run/netns/hello*-net; do [ ! -e "$network" ] || return 1; done
  [ -e $MACHINE_STATE ]
}
machine_restore() {
  machine_is_changed || return 0
  sysctl -q -p $MACHINE_STATE/sysctls
  # "ip netns" makes this folder a mount of its own.
  if [ -e $MACHINE_STATE/no-netns-before ] && [ -d /run/netns ] && [ -z "$(ls -A /run/netns)" ]; then
    umount /run/netns 2>/dev/null || true
    rmdir /run/netns
  fi
  rm -rf $MACHINE_STATE $MACHINE_STATE.new
}

# Is anything there, whole or in part?
has_traces() {
  local path
  for path in "$RUN" /run/netns/${PREFIX}-*; do [ ! -e "$path" ] || return 0; done
  ! has_no_interface || [ -n "$(cgroup_folders '*')" ] || machine_is_changed
}

# Removes every trace, of a whole cluster as of a half-started one: what is there decides, not what was written down.
remove_all() {
  local mount device file
  [ ! -e "$RUN" ] || [ -e "$RUN/.local-cluster" ] || [ -z "$(ls -A "$RUN")" ] || die "$RUN is not a run folder of this script; it stays as it is"
  network_delete
  { grep -o " $RUN/[^ ]*" /proc/mounts || true; } | sort -r | while read -r mount; do umount -l "$mount"; done
  losetup --noheadings --list --output NAME,BACK-FILE | while read -r device file; do
    case $file in "$RUN"/*) losetup --detach "$device" ;; esac
  done
  await 20 "the nodes' cgroups to be empty" remove_cgroups '*'
  machine_restore
  rm -rf "$RUN"
}
