//! Three PostgreSQL Pods over three nodes, without an operator.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use super::cluster::{Cluster, Error, eventually};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// A namespace with a StatefulSet `pg` of three, its headless Service `pg`, and a Service `pg-any` with an address.
pub struct Databases<'a> {
    cluster: &'a Cluster,
    client: kube::Client,
    namespace: String,
}

/// A Pod and where it is.
#[derive(Debug, Clone)]
pub struct Placed {
    pub name: String,
    pub address: String,
    pub node: String,
}

impl<'a> Databases<'a> {
    /// Returns when all three are ready.
    pub async fn create(cluster: &'a Cluster, name: &str) -> Result<Self> {
        Self::create_in_class(cluster, name, "local", "1Gi").await
    }

    /// The same with volumes of another class.
    pub async fn create_in_class(cluster: &'a Cluster, name: &str, class: &str, size: &str) -> Result<Self> {
        let client = cluster.client().await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        // A name of its own for each run: the namespace of an aborted one may still be there.
        let object = json!({"metadata": {"generateName": format!("cluster-test-{name}-")}});
        let created = namespaces.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        let namespace = created.metadata.name.ok_or("a created namespace has a name")?;

        let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
        let headless = json!({"metadata": {"name": "pg"}, "spec": {
            "clusterIP": "None", "selector": {"app": "pg"}, "ports": [{"port": 5432}], "publishNotReadyAddresses": true}});
        let any =
            json!({"metadata": {"name": "pg-any"}, "spec": {"selector": {"app": "pg"}, "ports": [{"port": 5432}]}});
        for service in [headless, any] {
            services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
        }
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
        sets.create(&PostParams::default(), &stateful_set(class, size)?).await?;
        eventually(Duration::from_secs(90), "three databases to be ready", || async {
            let set = sets.get("pg").await.map_err(|error| error.to_string())?;
            match set.status.and_then(|status| status.ready_replicas) {
                Some(3) => Ok(()),
                ready => Err(format!("{} of 3", ready.unwrap_or(0))),
            }
        })
        .await?;
        Ok(Self { cluster, client, namespace })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns when the namespace is gone.
    pub async fn delete(self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client);
        namespaces.delete(&self.namespace, &DeleteParams::default()).await?;
        eventually(Duration::from_secs(60), "the namespace to be gone", || async {
            match namespaces.get_opt(&self.namespace).await {
                Ok(None) => Ok(()),
                Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        Ok(())
    }

    pub async fn nodes(&self) -> Result<BTreeSet<String>> {
        Ok(self.placed().await?.into_iter().map(|pod| pod.node).collect())
    }

    pub async fn pod_on(&self, node: u8) -> Result<Placed> {
        let node = format!("node{node}");
        let pods = self.placed().await?;
        pods.into_iter().find(|pod| pod.node == node).ok_or_else(|| format!("no Pod on {node}").into())
    }

    pub async fn pods_on(&self, first: u8, second: u8) -> Result<(Placed, Placed)> {
        Ok((self.pod_on(first).await?, self.pod_on(second).await?))
    }

    pub async fn sql(&self, pod: &str, statement: &str) -> Result<String, Error> {
        self.cluster.sql(&self.namespace, pod, "postgres", statement).await
    }

    /// Whether the database at an address answers a Pod within a second.
    pub async fn is_ready_from(&self, pod: &str, address: &str) -> Result<String, Error> {
        self.cluster.pod(&self.namespace, pod).run("postgres", &["pg_isready", "-h", address, "-t", "1"]).await
    }

    /// How many TCP segments a Pod has received. Its probe uses a Unix socket, so it receives none by itself.
    pub async fn segments_received(&self, pod: &str) -> Result<u64> {
        let read = ["sed", "-n", "s/^Tcp: [0-9]/&/p", "/proc/net/snmp"];
        let counters = self.cluster.pod(&self.namespace, pod).run("postgres", &read).await?;
        // The tenth number is InSegs (RFC 4022, tcpInSegs).
        let field = counters.split_whitespace().nth(10).ok_or("a line of TCP counters")?;
        Ok(field.parse()?)
    }

    async fn placed(&self) -> Result<Vec<Placed>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let list = pods.list(&ListParams::default().labels("app=pg")).await?;
        let placed = |pod: Pod| {
            Some(Placed { name: pod.metadata.name?, address: pod.status?.pod_ip?, node: pod.spec?.node_name? })
        };
        Ok(list.into_iter().filter_map(placed).collect())
    }
}

/// `True`, `False` or `Unknown`: what the API server believes of a node.
pub async fn ready_condition(nodes: &Api<Node>, name: &str) -> Result<String, String> {
    let node = nodes.get(name).await.map_err(|error| error.to_string())?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    ready.map(|condition| condition.status).ok_or_else(|| "no condition Ready".to_owned())
}

fn stateful_set(class: &str, size: &str) -> Result<StatefulSet> {
    let start = "[ -s data/PG_VERSION ] || initdb -D data --auth=trust -U postgres >/dev/null; \
                 printf '%s all all %s trust\\n' local '' host all >data/pg_hba.conf; \
                 exec postgres -D data -c listen_addresses='*'";
    let object = json!({
        "metadata": {"name": "pg"},
        "spec": {
            "serviceName": "pg",
            "replicas": 3,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "pg"}},
            "template": {
                "metadata": {"labels": {"app": "pg"}},
                "spec": {
                    "securityContext": {"runAsUser": 999, "runAsGroup": 999, "fsGroup": 999, "fsGroupChangePolicy": "OnRootMismatch"},
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"app": "pg"}}
                    }],
                    "terminationGracePeriodSeconds": 2,
                    "containers": [{
                        "name": "postgres",
                        "image": "docker.io/library/postgres:17",
                        "workingDir": "/volume",
                        "command": ["bash", "-ec", start],
                        "volumeMounts": [{"name": "data", "mountPath": "/volume"}],
                        "readinessProbe": {"exec": {"command": ["pg_isready", "-q"]}, "periodSeconds": 1}
                    }]
                }
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
            }]
        }
    });
    Ok(serde_json::from_value(object)?)
}
