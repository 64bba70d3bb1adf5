# etcd, API server, controller manager, scheduler, DNS and the volume provisioner, all in the control plane's network namespace.
# Sourced after pki.sh.

kubectl() { "$RUN/bin/kubectl" --kubeconfig "$RUN/pki/lc.kubeconfig" --request-timeout 10s "$@"; }
start_in_control_plane() { # name command...
  local name=$1
  shift
  start_process "$name" nsenter --net=/run/netns/${PREFIX}-control-plane -- "$@"
}
api_ready() { kubectl get --raw /readyz; }

etcd_start() {
  # No fsync: this etcd need not survive the machine, and the disk of a busy machine would set the pace otherwise.
  start_in_control_plane etcd "$RUN/bin/etcd" --name local --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster local=http://127.0.0.1:2380
}
api_server_start() {
  local pki=$RUN/pki
  start_in_control_plane kube-apiserver "$RUN/bin/kube-apiserver" --etcd-servers http://127.0.0.1:2379 \
    --bind-address $CONTROL_PLANE --secure-port 6443 --advertise-address $CONTROL_PLANE --service-cluster-ip-range 10.96.0.0/16 \
    --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" --client-ca-file "$pki/ca.crt" \
    --service-account-issuer https://kubernetes.default.svc.cluster.local \
    --service-account-key-file "$pki/service-account.pub" --service-account-signing-key-file "$pki/service-account.key" \
    --kubelet-client-certificate "$pki/api-kubelet.crt" --kubelet-client-key "$pki/api-kubelet.key" \
    --kubelet-certificate-authority "$pki/ca.crt" --kubelet-preferred-address-types InternalIP \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --requestheader-client-ca-file "$pki/front-ca.crt" --requestheader-allowed-names front-proxy-client --requestheader-extra-headers-prefix X-Remote-Extra- \
    --requestheader-group-headers X-Remote-Group --requestheader-username-headers X-Remote-User \
    --proxy-client-cert-file "$pki/front.crt" --proxy-client-key-file "$pki/front.key" \
    --enable-aggregator-routing=true --allow-privileged=true \
    --audit-policy-file "$here/manifests/audit-policy.yaml" --audit-log-path "$RUN/audit.log" --audit-log-maxsize 4096
}
controller_manager_start() {
  local pki=$RUN/pki
  start_in_control_plane kube-controller-manager "$RUN/bin/kube-controller-manager" --kubeconfig "$pki/controller-manager.kubeconfig" \
    --authentication-kubeconfig "$pki/controller-manager.kubeconfig" --authorization-kubeconfig "$pki/controller-manager.kubeconfig" \
    --service-account-private-key-file "$pki/service-account.key" --root-ca-file "$pki/ca.crt" --use-service-account-credentials \
    --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key" --service-cluster-ip-range 10.96.0.0/16 --leader-elect=false
}
scheduler_start() {
  local pki=$RUN/pki
  start_in_control_plane kube-scheduler "$RUN/bin/kube-scheduler" --kubeconfig "$pki/scheduler.kubeconfig" \
    --authentication-kubeconfig "$pki/scheduler.kubeconfig" --authorization-kubeconfig "$pki/scheduler.kubeconfig" --leader-elect=false
}
provisioner_start() {
  start_in_control_plane provisioner "$RUN/bin/provisioner" --kubeconfig "$RUN/pki/provisioner.kubeconfig" --directory "$RUN/volumes"
}
dns_start() {
  cat >"$RUN/Corefile" <<CONFIG
.:53 {
  bind $CONTROL_PLANE
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $RUN/pki/dns.kubeconfig hello-operator-local
    pods insecure
    ttl 5
  }
  cache 5
  loadbalance
}
CONFIG
  start_in_control_plane coredns "$RUN/bin/coredns" -conf "$RUN/Corefile"
}

# Pods are refused until their namespace has this, which the controller manager makes.
has_service_account() { kubectl get serviceaccount default --namespace default; }

control_plane_processes=(etcd kube-apiserver kube-controller-manager kube-scheduler provisioner coredns)

# Starts whatever part does not run; a part that a test stopped with SIGSTOP continues.
control_plane_start() {
  local name pid
  for name in "${control_plane_processes[@]}"; do
    if pid=$(process_id "$name"); then kill -CONT "$pid"; fi
  done
  process_id etcd >/dev/null || etcd_start
  process_id kube-apiserver >/dev/null || api_server_start
  await 60 "the API server to be ready (see $RUN/log/kube-apiserver.log)" api_ready
  process_id kube-controller-manager >/dev/null || controller_manager_start
  process_id kube-scheduler >/dev/null || scheduler_start
  process_id provisioner >/dev/null || provisioner_start
  process_id coredns >/dev/null || dns_start
}
