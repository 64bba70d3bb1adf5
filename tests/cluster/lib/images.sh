# Images without a registry: into containerd's own store. Sourced after common.sh.

# Runs containerd in a scratch folder, imports archives, and keeps its root: every node starts from a copy of it,
# made of hard links, which takes a fraction of a second where an import takes seconds.
fill_image_store() ( # output archive...
  output=$1
  shift
  mkdir "$output/run"
  containerd_config "$output/containerd" "$output/run" "$output/run/cni" >"$output/run/config.toml"
  # Whoever kills this script kills it too.
  setpriv --pdeathsig KILL containerd --config "$output/run/config.toml" --log-level error </dev/null >"$output/run/log" 2>&1 8>&- 9>&- &
  containerd=$!
  trap 'kill -KILL $containerd 2>/dev/null || true' EXIT
  await 20 "containerd to answer (see $output/run/log)" ctr --address "$output/run/containerd.sock" version
  for archive in "$@"; do import_image "$output/run/containerd.sock" "$archive"; done
  kill -TERM $containerd
  wait $containerd || true
  rm -r "$output/run"
)
copy_image_store() { # store destination
  # Content and unpacked layers never change; the databases do.
  cp -al "$1/containerd" "$2" 2>/dev/null || { rm -rf "$2"; cp -a "$1/containerd" "$2"; return; }
  local database
  find "$2" -name '*.db' | while read -r database; do
    cp -a "$database" "$database.copy"
    mv "$database.copy" "$database"
  done
}

import_image() { # socket archive
  ctr --address "$1" --namespace k8s.io images import "$2" >/dev/null
}

# Imports an archive on every node that has power, at once.
load_image() { # archive
  local archive=$1 number pids=()
  [ -r "$archive" ] || die "cannot read the image archive '$archive'"
  for number in $(node_numbers); do
    node_has_power "$number" || continue
    import_image "$RUN/node$number/run/containerd.sock" "$archive" & pids+=($!)
  done
  join "${pids[@]}" || die "could not import $archive on every node"
  # For nodes that are added or that come back later.
  mkdir -p "$RUN/images"
  cp --reflink=auto "$archive" "$RUN/images/$(sha256sum <"$archive" | cut -c1-16).tar"
}

containerd_config() { # root run cni-configurations
  cat <<CONFIG
version = 2
root = "$1"
state = "$2/state"
[grpc]
  address = "$2/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.local/pause:1"
  # Lowering oom_score_adj needs CAP_SYS_RESOURCE, which root lacks in many sandboxes.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$3"
[plugins."io.containerd.internal.v1.opt"]
  path = "$2/opt"
CONFIG
}
