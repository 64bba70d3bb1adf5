# The cluster's network: one namespace with a bridge, and a namespace per host with a veth into it. Sourced after common.sh.
#
#   hello-net            bridge br0; a port per host, named like the host; nftables drops what is cut
#   hello-control-plane  10.250.0.2
#   hello-nodeN          10.250.0.(10+N), Pods in 10.244.N.0/24
#   the machine itself   10.250.0.1 on hello0, for kubectl and tests
#
# With HELLO_CLUSTER=K, a cluster of its own beside that one: helloK-net, 10.250.K.x, Pods in 10.(244-K).N.0/24, helloK.

PREFIX=hello
((CLUSTER == 0)) || PREFIX=hello$CLUSTER
MACHINE_INTERFACE=hello$CLUSTER
HOSTS=10.250.$CLUSTER
PODS=10.$((244 - CLUSTER))
CONTROL_PLANE=$HOSTS.2
MACHINE=$HOSTS.1
MAX_NODES=40
node_address() { echo "$HOSTS.$((10 + $1))"; } # N

in_network() { nsenter --net=/run/netns/${PREFIX}-net -- "$@"; }
has_namespace() { [ -e "/run/netns/${PREFIX}-$1" ]; } # host

network_create() {
  ip netns add ${PREFIX}-net
  ip -n ${PREFIX}-net link add br0 type bridge
  ip -n ${PREFIX}-net link set br0 up
  # Frames between ports pass here; an established connection is cut like a new one. Address resolution is never cut: without
  # it a cut in one direction would soon be one in both.
  in_network nft -f - <<'RULES'
table bridge cuts {
  set to { type ifname; }
  set from { type ifname; }
  set pairs { type ifname . ifname; }
  chain forward {
    type filter hook forward priority 0;
    ether type arp accept
    oifname @to drop
    iifname @from drop
    iifname . oifname @pairs drop
  }
}
RULES
  ip link add $MACHINE_INTERFACE type veth peer name machine netns ${PREFIX}-net
  ip addr add $MACHINE/24 dev $MACHINE_INTERFACE
  ip link set $MACHINE_INTERFACE up
  ip -n ${PREFIX}-net link set machine master br0 up
  host_create control-plane $CONTROL_PLANE
}

host_create() { # host address
  local namespace=${PREFIX}-$1
  ip netns add "$namespace"
  ip -n "$namespace" link set lo up
  ip -n "$namespace" link add eth0 type veth peer name "$1" netns ${PREFIX}-net
  ip -n "$namespace" addr add "$2/24" dev eth0
  ip -n "$namespace" link set eth0 up
  ip -n ${PREFIX}-net link set "$1" master br0 up
  nsenter --net="/run/netns/$namespace" -- sysctl -qw net.ipv4.ip_forward=1
}

# Makes node N's host and the routes between its Pods and everyone else's. Routes name the host's address, so they outlive it.
node_network_create() ( # N
  # Nodes start in parallel, and each needs the others' addresses or none of them.
  exec 7>"$RUN/network.lock"
  flock 7
  host_create "node$1" "$(node_address "$1")"
  ip -n "${PREFIX}-node$1" route add default via $MACHINE
  for namespace in /run/netns/${PREFIX}-*; do
    other=${namespace##*/${PREFIX}-}
    case $other in
      net | "node$1") ;;
      control-plane) ip -n ${PREFIX}-control-plane route replace "$PODS.$1.0/24" via "$(node_address "$1")" ;;
      node*)
        number=${other#node}
        ip -n "${PREFIX}-$other" route replace "$PODS.$1.0/24" via "$(node_address "$1")"
        ip -n "${PREFIX}-node$1" route replace "$PODS.$number.0/24" via "$(node_address "$number")"
        ;;
    esac
  done
  ip route replace "$PODS.$1.0/24" via "$(node_address "$1")"
)

# What a switch sees of a host without power: no carrier, and no answer, not even a refusal.
node_network_delete() { # N
  ip -n ${PREFIX}-net link del "node$1" 2>/dev/null || true
  ! has_namespace "node$1" || ip netns del "${PREFIX}-node$1"
}

namespace_processes() { # namespace
  ip netns pids "$1" 2>/dev/null
}

# Removes every namespace of ours after killing what runs in it: only our own processes are ever in there.
network_delete() {
  local path namespace pids
  for path in /run/netns/${PREFIX}-*; do
    [ -e "$path" ] || continue
    namespace=${path##*/}
    pids=$(namespace_processes "$namespace")
    # shellcheck disable=SC2086 # one argument per process
    [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
  done
  for path in /run/netns/${PREFIX}-*; do
    [ -e "$path" ] || continue
    namespace=${path##*/}
    await 20 "the processes in network namespace $namespace to end" has_no_processes "$namespace"
    ip netns del "$namespace"
  done
  # It goes with the namespace that its peer is in, but a little later.
  ip link del "$MACHINE_INTERFACE" 2>/dev/null || true
  await 10 "the interface $MACHINE_INTERFACE to be gone" has_no_interface
}
has_no_interface() { [ ! -e "/sys/class/net/$MACHINE_INTERFACE" ]; }
has_no_processes() { # namespace
  [ -z "$(namespace_processes "$1")" ]
}

# --- faults

# Both ways are cut by default; `heal` takes back every cut of that node.
network_cut() { # N
  in_network nft "add element bridge cuts to { node$1 }; add element bridge cuts from { node$1 }"
}
network_cut_to() { in_network nft "add element bridge cuts to { node$1 }"; }     # N: it hears nobody
network_cut_from() { in_network nft "add element bridge cuts from { node$1 }"; } # N: nobody hears it
network_cut_between() { # A B: neither reaches the other; everyone else reaches both
  in_network nft "add element bridge cuts pairs { $1 . $2, $2 . $1 }"
}
network_heal() { # N
  in_network nft -f - <<RULES
add element bridge cuts to { node$1 }
delete element bridge cuts to { node$1 }
add element bridge cuts from { node$1 }
delete element bridge cuts from { node$1 }
RULES
  local pair
  in_network nft -j list set bridge cuts pairs |
    jq -r '.nftables[] | .set? // empty | .elem[]? | .concat | join(" . ")' | { grep -w "node$1" || true; } |
    while read -r pair; do in_network nft "delete element bridge cuts pairs { $pair }"; done
}
network_heal_all() { in_network nft "flush set bridge cuts to; flush set bridge cuts from; flush set bridge cuts pairs"; }
network_cuts() { # prints what is cut, one a line
  in_network nft -j list table bridge cuts | jq -r '
    .nftables[] | .set? // empty | .name as $name | .elem[]? |
    if type == "string" then "\($name) \(.)" else "between \(.concat | join(" and "))" end'
}
