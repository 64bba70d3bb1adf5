# Keys, certificates and kubeconfigs, made anew for every cluster. Sourced after network.sh.

pki() { (cd "$RUN/pki" && "$@"); }

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key" 2>/dev/null; } # name
new_authority() { # name
  new_key "$1"
  openssl req -x509 -new -key "$1.key" -subj "/CN=$1" -days 3650 -out "$1.crt" 2>/dev/null
}
new_certificate() { # name subject authority [subjectAltName]
  new_key "$1"
  openssl req -new -key "$1.key" -subj "$2" -out "$1.csr" 2>/dev/null
  # A random serial, because certificates are made in parallel and a counter file would be shared.
  openssl x509 -req -in "$1.csr" -CA "$3.crt" -CAkey "$3.key" -set_serial "0x$(openssl rand -hex 8)" -days 3650 -out "$1.crt" \
    -extfile <(echo "extendedKeyUsage=serverAuth,clientAuth"; [ -z "${4:-}" ] || echo "subjectAltName=$4") 2>/dev/null
  rm "$1.csr"
}
# Certificates are inside the file, so that it can be copied anywhere.
new_kubeconfig() { # user file
  cat >"$2" <<CONFIG
apiVersion: v1
kind: Config
clusters:
- name: hello-operator-local
  cluster: {server: "https://$CONTROL_PLANE:6443", certificate-authority-data: $(base64 -w0 ca.crt)}
users:
- name: $1
  user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}
contexts:
- name: hello-operator-local
  context: {cluster: hello-operator-local, user: $1}
current-context: hello-operator-local
CONFIG
  chmod 600 "$2"
}
new_user() { # name subject
  new_certificate "$1" "$2" ca
  new_kubeconfig "$1" "$1.kubeconfig"
}

pki_create() {
  mkdir -p "$RUN/pki"
  chmod 700 "$RUN/pki"
  pki pki_fill
}
pki_fill() {
  local pids=()
  new_authority ca
  new_authority front-ca
  new_certificate apiserver /CN=kube-apiserver ca "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:10.96.0.1,IP:$CONTROL_PLANE" & pids+=($!)
  new_certificate api-kubelet /CN=api-kubelet ca & pids+=($!)
  new_certificate front /CN=front-proxy-client front-ca & pids+=($!)
  new_user admin /O=system:masters/CN=admin & pids+=($!)
  new_user controller-manager /CN=system:kube-controller-manager & pids+=($!)
  new_user scheduler /CN=system:kube-scheduler & pids+=($!)
  new_user proxy /CN=system:kube-proxy & pids+=($!)
  # Groups of their own keep these helpers out of the audit log (see audit-policy.yaml).
  new_user dns /O=system:masters/O=local-cluster:helpers/CN=local-cluster:dns & pids+=($!)
  new_user provisioner /O=system:masters/O=local-cluster:helpers/CN=local-cluster:provisioner & pids+=($!)
  new_user lc /O=system:masters/O=local-cluster:helpers/CN=local-cluster:lc & pids+=($!)
  new_key service-account
  openssl ec -in service-account.key -pubout -out service-account.pub 2>/dev/null
  join "${pids[@]}"
  cp admin.kubeconfig "$RUN/kubeconfig"
}
pki_add_node() { pki pki_fill_node "$1"; } # N
pki_fill_node() {
  [ ! -f "node$1.kubeconfig" ] || return 0
  new_certificate "node$1-server" "/CN=node$1" ca "DNS:node$1,IP:$(node_address "$1")"
  new_user "node$1" "/O=system:nodes/CN=system:node:node$1"
}
