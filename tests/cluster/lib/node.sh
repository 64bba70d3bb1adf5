# A node: network, mount, PID and UTS namespaces with containerd, kubelet and kube-proxy. Sourced after images.sh.
#
# Its disk is $RUN/nodeN, mounted over /var/lib and /var/log of its own mount namespace; its /run is memory. All of its processes are
# below one PID 1, so one SIGKILL is a power loss: processes and mounts go at once, the disk stays.

node_numbers() { # of every node that was added, with power or without
  local folder
  for folder in "$RUN"/node*/; do [ -d "$folder" ] && basename "$folder" | sed 's/^node//'; done | sort -n
}
node_has_power() { process_id "node$1-init" >/dev/null; } # N
node_is_whole() { # N: every process that gives it its function runs
  local name
  for name in init containerd kubelet kube-proxy; do process_id "node$1-$name" >/dev/null || return 1; done
}
known_node() { [[ $1 =~ ^[0-9]+$ && -d $RUN/node$1 ]] || die "there is no node '$1'; there are: $(node_numbers | paste -sd' ')"; }
in_node() { # N command...
  local number=$1 init
  shift
  init=$(process_id "node$number-init") || die "node$number has no power"
  nsenter -t "$init" -m -p -n -u -- "$@"
}

# The machine's cgroups are used as they are, never mounted anew: one cgroup per node in each hierarchy.
unified_cgroups() { [ -e /sys/fs/cgroup/cgroup.controllers ]; }
cgroups_create() { # N
  local hierarchy file
  if unified_cgroups; then
    mkdir -p "/sys/fs/cgroup/${PREFIX}-node$1"
    # shellcheck disable=SC2013 # words of one line
    for file in $(</sys/fs/cgroup/cgroup.controllers); do echo "+$file" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true; done
    return
  fi
  for hierarchy in /sys/fs/cgroup/*/; do
    case $hierarchy in */unified/) ;; *) mkdir -p "${hierarchy}${PREFIX}-node$1" ;; esac
  done
  # A new cpuset is empty and takes no process.
  for file in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$file" >"/sys/fs/cgroup/cpuset/${PREFIX}-node$1/$file"; done
}
cgroup_folders() { # N, or * for every node's
  # shellcheck disable=SC2086 # the pattern is meant
  find /sys/fs/cgroup/${PREFIX}-node$1 /sys/fs/cgroup/*/${PREFIX}-node$1 -depth -type d 2>/dev/null || true
}
remove_cgroups() { # N or *
  local folder
  cgroup_folders "$1" | while read -r folder; do rmdir "$folder" 2>/dev/null || true; done
  [ -z "$(cgroup_folders "$1")" ]
}

node_create() { # N
  local folder=$RUN/node$1
  mkdir -p "$folder/disk/lib/kubelet" "$folder/disk/log" "$folder/plugins"
  copy_image_store "$(readlink "$RUN/bin/image-store")" "$folder/containerd"
  pki_add_node "$1"
  # What tells one boot, and one machine, from another.
  tr -d - </proc/sys/kernel/random/uuid >"$folder/machine-id"
  node_configure "$1"
}
node_configure() { # N
  local number=$1 folder=$RUN/node$1
  mkdir -p "$folder/etc/cni"
  # Pods resolve through the cluster's DNS only; there is nothing beyond it.
  echo "nameserver 127.0.0.1" >"$folder/etc/resolv.conf"
  cat >"$folder/etc/cni/10-local.conflist" <<CONFIG
{
  "cniVersion": "1.0.0",
  "name": "local",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "$PODS.$number.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
CONFIG
  containerd_config "$folder/containerd" "$folder/run" "$folder/etc/cni" >"$folder/etc/containerd.toml"
  cat >"$folder/etc/kubelet.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /${PREFIX}-node$number
containerRuntimeEndpoint: unix://$folder/run/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $RUN/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $RUN/pki/node$number-server.crt
tlsPrivateKeyFile: $RUN/pki/node$number-server.key
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: $folder/etc/resolv.conf
failSwapOn: false
serializeImagePulls: false
nodeStatusUpdateFrequency: 4s
# The machine's disk and memory are everyone's: a node gives Pods up only when the machine itself is nearly full.
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
# No registry is there to get a deleted image back from.
imageGCHighThresholdPercent: 100
imageMinimumGCAge: 1000h
volumePluginDir: $folder/plugins
CONFIG
  cat >"$folder/etc/kube-proxy.yaml" <<CONFIG
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: $PODS.0.0/16
clientConnection: {kubeconfig: $RUN/pki/proxy.kubeconfig}
# These sysctls belong to the machine.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
hostnameOverride: node$number
CONFIG
}

# Gives a node its power: nothing of an earlier boot is left but its disk.
node_start() { # N
  local number=$1 folder=$RUN/node$1 outer init image
  node_network_delete "$number"
  rm -rf "$folder/run"
  mkdir -p "$folder/run"
  node_network_create "$number"
  cgroups_create "$number"
  cat /proc/sys/kernel/random/uuid >"$folder/boot-id"
  # nsenter, not "ip netns exec": that one mounts a new /sys, and the kubelet finds no cgroups there.
  # shellcheck disable=SC2016 # expanded by the inner shell
  setsid nsenter --net="/run/netns/${PREFIX}-node$number" -- \
    unshare --mount --propagation private --pid --uts --fork --mount-proc sh -ec '
      hostname "$1"
      mount -t tmpfs -o mode=755 tmpfs /run
      mkdir /run/netns /run/lock
      mount --bind "$2/disk/lib" /var/lib
      mount --bind "$2/disk/log" /var/log
      mount --bind "$2/boot-id" /proc/sys/kernel/random/boot_id
      [ ! -e /etc/machine-id ] || mount --bind "$2/machine-id" /etc/machine-id
      : >"$2/run/booted"
      exec sleep infinity
    ' sh "node$number" "$folder" </dev/null >>"$RUN/log/node$number-init.log" 2>&1 9>&- &
  outer=$!
  await 10 "node$number to boot (see $RUN/log/node$number-init.log)" test -e "$folder/run/booted"
  init=$(tr -d ' ' <"/proc/$outer/task/$outer/children")
  remember_process "node$number-init" "$init"

  start_in_node "$number" containerd containerd --config "$folder/etc/containerd.toml" --log-level warn
  await 30 "containerd of node$number (see $RUN/log/node$number-containerd.log)" ctr --address "$folder/run/containerd.sock" version
  if [ ! -e "$folder/imported" ]; then
    for image in "$RUN"/images/*.tar; do [ ! -e "$image" ] || import_image "$folder/run/containerd.sock" "$image"; done
    : >"$folder/imported"
  fi
  start_in_node "$number" kubelet "$RUN/bin/kubelet" --config "$folder/etc/kubelet.yaml" --kubeconfig "$RUN/pki/node$number.kubeconfig" \
    --hostname-override "node$number" --node-ip "$(node_address "$number")" --cert-dir "$folder/disk/lib/kubelet/pki" \
    --node-labels "topology.kubernetes.io/region=local,topology.kubernetes.io/zone=zone$number"
  start_in_node "$number" kube-proxy "$RUN/bin/kube-proxy" --config "$folder/etc/kube-proxy.yaml"
}
start_in_node() { # N name command...
  local number=$1 name=$2
  shift 2
  start_process "node$number-$name" nsenter -t "$(process_id "node$number-init")" -m -p -n -u -- "$@"
}

# Power loss. The port goes first, so that no dying process says goodbye.
node_kill() { # N
  local init
  init=$(process_id "node$1-init") || die "node$1 has no power already"
  ip -n ${PREFIX}-net link set "node$1" down
  kill -KILL "$init"
  await 20 "the processes of node$1 to end" has_no_processes "${PREFIX}-node$1"
  node_network_delete "$1"
  await 10 "the cgroups of node$1 to be empty" remove_cgroups "$1"
}

# Takes a node without power out of the cluster. Volumes on it stay, as they would on a disk in a drawer.
node_delete() { # N
  network_heal "$1"
  kubectl delete node "node$1" --ignore-not-found >/dev/null
  ip route del "$PODS.$1.0/24" 2>/dev/null || true
  rm -rf "$RUN/node$1"
}

# Ready, and said so by the kubelet of this boot: for 40 s the API server believes what the last one said.
node_is_ready() { # N
  local boot ready
  IFS=$'\t' read -r boot ready < <(kubectl get node "node$1" -o jsonpath='{.status.nodeInfo.bootID}{"\t"}{.status.conditions[?(@.type=="Ready")].status}')
  [ "$boot" = "$(<"$RUN/node$1/boot-id")" ] && [ "$ready" = True ]
}
await_nodes() { # N...
  local number
  for number in "$@"; do
    await 90 "node$number to be Ready (see $RUN/log/node$number-kubelet.log)" node_is_ready "$number"
  done
}
