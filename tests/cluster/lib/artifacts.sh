# Everything that is built rather than installed, cached by the content of what it is built from. Sourced after common.sh.
#
# An artifact NAME has: an entry in `artifact_inputs` (files and folders that decide its content), one in `artifact_cost`
# (what to tell a waiting user), and a function build_NAME that fills a folder.

KUBERNETES_VERSION=v1.36.3

declare -A artifact_inputs=(
  [kube]="tools/kube" [etcd]="tools/etcd" [coredns]="tools/coredns" [helm]="tools/helm" [provisioner]="tools/provisioner"
  [prometheus]="tools/prometheus" [alertmanager]="tools/alertmanager" [monitoring-crds]="tools/monitoring-crds"
  [collector]="tools/collector" [kstatus]="tools/kstatus" [olm]="tools/olm"
  [pause]="images/pause images/oci-archive" [postgres]="images/postgres images/oci-archive"
  [postgres-15]="images/postgres images/oci-archive" [postgres-16]="images/postgres images/oci-archive" [postgres-18]="images/postgres images/oci-archive"
  [image-store]="images lib/images.sh"
)
declare -A artifact_cost=(
  [kube]="7 to 10 minutes the first time, half a minute from Go's own cache" [etcd]="1 minute" [coredns]="2 minutes" [helm]="3 minutes"
  [prometheus]="6 minutes" [alertmanager]="2 minutes" [monitoring-crds]="5 seconds"
  [collector]="4 minutes" [kstatus]="30 seconds" [olm]="1 minute"
  [provisioner]="10 seconds after kube, 1 minute before it" [pause]="1 second" [postgres]="2 minutes, mostly download" [image-store]="5 seconds"
  [postgres-15]="2 minutes" [postgres-16]="2 minutes" [postgres-18]="2 minutes"
)
# What a cluster needs; helm is for those who install a chart.
cluster_artifacts=(kube etcd coredns provisioner pause postgres image-store)
all_artifacts=("${cluster_artifacts[@]}" helm)
# Only the tests of alerts, dashboards and traces, of what other tools read, and those of PostgreSQL's other versions, need
# these.
more_artifacts=(prometheus alertmanager monitoring-crds collector kstatus olm postgres-15 postgres-16 postgres-18)

go_build() { # module output ldflags
  (cd "$here/tools/$1" && CGO_ENABLED=0 GOFLAGS='' go build -trimpath -buildvcs=false -ldflags "-s -w $3" -o "$2/$1" .)
}
build_kube() {
  local package version=${KUBERNETES_VERSION#v} flags=""
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$KUBERNETES_VERSION -X $package.gitMajor=${version%%.*} -X $package.gitMinor=$(cut -d. -f2 <<<"$version") -X $package.gitTreeState=clean"
  done
  go_build kube "$1" "$flags"
}
build_etcd() { go_build etcd "$1" ""; }
build_coredns() { go_build coredns "$1" ""; }
build_kstatus() { go_build kstatus "$1" ""; }
build_olm() { go_build olm "$1" ""; }
build_provisioner() { go_build provisioner "$1" ""; }
build_collector() { go_build collector "$1" ""; }
go_tool() { # module output package flags...
  (cd "$here/tools/$1" && CGO_ENABLED=0 GOFLAGS='' go build -trimpath -buildvcs=false -ldflags "-s -w" "${@:4}" -o "$2/${3##*/}" "$3")
}
# Of the ways to find targets only that of Kubernetes; nobody looks at the pages that are built elsewhere.
build_prometheus() {
  local tool
  for tool in prometheus promtool; do
    go_tool prometheus "$1" github.com/prometheus/prometheus/cmd/$tool -tags remove_all_sd,enable_kubernetes_sd
  done
}
build_alertmanager() { go_tool alertmanager "$1" github.com/prometheus/alertmanager/cmd/alertmanager; }
# The definitions of the Prometheus operator, without the operator.
build_monitoring-crds() {
  local module kind
  module=$(cd "$here/tools/monitoring-crds" && GOFLAGS='' go mod download -json github.com/prometheus-operator/prometheus-operator | jq -r .Dir)
  for kind in prometheusrules servicemonitors podmonitors; do
    install -m 644 "$module/example/prometheus-operator-crd/monitoring.coreos.com_$kind.yaml" "$1"
  done
}
build_helm() { (cd "$here/tools/helm" && CGO_ENABLED=0 GOFLAGS='' go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$1/helm" helm.sh/helm/v4/cmd/helm); }

build_pause() {
  mkdir "$1/root"
  gcc -Os -static -s -Wall -Werror -o "$1/root/pause" "$here/images/pause/pause.c"
  tar -C "$1/root" --owner=0 --group=0 --mtime=@0 -cf "$1/layer.tar" pause
  "$here/images/oci-archive" "$1/image.tar" "$1/layer.tar" 'registry.local/pause:1={"Entrypoint":["/pause"]}'
  rm -r "$1/layer.tar" "$1/root"
}
# Each major version is in another release of Debian, or of Ubuntu. Trixie's is that of every day.
postgres_image() { # output suite major [source]
  local config
  "$here/images/postgres/layer" "$1/layer.tar" "$2" "$3" "${@:4}"
  config=$(jq -c . "$here/images/postgres/config.json")
  config=${config//MAJOR/$3}
  # The second name is the same PostgreSQL under another digest: what a change of image looks like.
  "$here/images/oci-archive" "$1/image.tar" "$1/layer.tar" "docker.io/library/postgres:$3=$config" \
    "registry.local/postgres:$3-b=$(jq -c '.Labels = {"hello-operator/variant": "b"}' <<<"$config")"
  rm "$1/layer.tar"
}
build_postgres() { postgres_image "$1" trixie 17; }
build_postgres-15() { postgres_image "$1" bookworm 15; }
build_postgres-18() { postgres_image "$1" forky 18; }
# No release of Debian has 16. Debian has Ubuntu's keys, in a later release than that of many machines.
build_postgres-16() {
  local package=$1/keyring.deb keys=usr/share/keyrings/ubuntu-archive-keyring.gpg
  curl -fsS --max-time 60 -o "$package" http://deb.debian.org/debian/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1-0.2_all.deb
  echo "b2e7ed48431bf9e7978ae810bbdaf253093570d6e3f864e575b7c13554b81174  $package" | sha256sum --check --quiet
  dpkg-deb --fsys-tarfile "$package" | tar -xO "./$keys" >"$1/ubuntu.gpg"
  chmod 755 "$1"
  postgres_image "$1" noble 16 "deb [signed-by=$1/ubuntu.gpg] http://archive.ubuntu.com/ubuntu noble main universe"
  rm "$package" "$1/ubuntu.gpg"
}
build_image-store() { fill_image_store "$1" "$(artifact pause)/image.tar" "$(artifact postgres)/image.tar"; }

# The folder of an artifact, there or not.
artifact() { # name
  local name=$1 input key
  [ -n "${artifact_inputs[$name]:-}" ] || die "there is no artifact '$name'; there are: ${all_artifacts[*]} ${more_artifacts[*]}"
  key=$({
    # Image builds depend on what they are built from, Go builds on the compiler too.
    declare -f "build_$name" go_build
    case $name in prometheus | alertmanager) declare -f go_tool ;; postgres | postgres-*) declare -f postgres_image ;; esac
    case ${artifact_inputs[$name]} in tools/*) go env GOVERSION GOARCH; echo "$KUBERNETES_VERSION" ;; esac
    for input in ${artifact_inputs[$name]}; do find "$here/$input" -type f -print0 | LC_ALL=C sort -z | (cd "$here" && xargs -0 sha256sum | sed "s: $here/: :"); done
  } | sha256sum)
  echo "$CACHE/$name-${key:0:16}"
}

# Builds an artifact unless it is there. It appears under its name only when complete.
build_artifact() { # name
  local name=$1 folder unfinished began=$SECONDS
  folder=$(artifact "$name")
  if [ -d "$folder" ]; then touch "$folder"; return; fi
  mkdir -p "$CACHE"
  (
    exec 8>"$CACHE/$name.lock"
    flock -n 8 || { say "waiting for another build of $name"; flock -w 1800 8; }
    [ ! -d "$folder" ] || exit 0
    say "building $name (usually ${artifact_cost[$name]})"
    # The lock is ours, so nobody works on these any more.
    rm -rf "$CACHE/.unfinished-$name"-??????
    unfinished=$(mktemp -d "$CACHE/.unfinished-$name-XXXXXX")
    # Not `if ! build`: that would switch off "stop at the first error" inside it.
    # shellcheck disable=SC2154 # assigned in the trap
    trap 'status=$?; rm -rf "$unfinished"; [ $status = 0 ] || say "building $name failed"' EXIT
    mkdir "$unfinished/tmp"
    TMPDIR=$unfinished/tmp "build_$name" "$unfinished" >&2
    rm -rf "$unfinished/tmp"
    chmod 755 "$unfinished"
    mv -T "$unfinished" "$folder"
    say "built $name in $((SECONDS - began)) s"
  )
  # The three versions used last stay; several checkouts may need different ones.
  find "$CACHE" -maxdepth 1 -type d -name "$name-????????????????" -printf '%T@ %p\n' | sort -rn | tail -n +4 | cut -d' ' -f2- |
    while read -r folder; do rm -rf "$folder"; done
}

# The Go builds follow each other, because each uses every core; the images, mostly downloads, go beside them.
build_artifacts() { # name...
  local name images=() pids=()
  for name in "$@"; do case $name in pause | postgres | postgres-*) images+=("$name") ;; esac; done
  if ((${#images[@]})); then (for name in "${images[@]}"; do build_artifact "$name"; done) & pids+=($!); fi
  (for name in "$@"; do case ${artifact_inputs[$name]:-} in tools/*) build_artifact "$name" ;; esac; done) & pids+=($!)
  join "${pids[@]}"
  for name in "$@"; do case $name in image-store) build_artifact "$name" ;; esac; done
}
