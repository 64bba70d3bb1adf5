//! From the mirrors, the API server and the agents to a [`World`].

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, Client};

use super::agents::{Agents, Target};
use super::backups;
use super::error::{Error, call};
use super::facts;
use super::mirror::ClusterKey;
use super::secrets::Secrets;
use super::streams::Mirrors;
use crate::api::agent::Report;
use crate::api::config::{ClusterConfig, Collector};
use crate::api::names::{ANNOTATION_GREETED, CONFIG_KEY, LABEL_CLUSTER, LABEL_MANAGED_BY, MANAGED_BY, Names};
use crate::core::world::{
    BackupFacts, ChildId, ChildMeta, Failure, Kind, Known, LeaseFacts, ObjectFacts, PodFacts, SecretKind, Trouble,
    UserSecret, Volume, VolumeFacts, World,
};

/// Age from which on a certificate of ours towards the agents is made anew, in seconds.
const OWN_CERTIFICATE: i64 = 30 * 86_400;

#[derive(Clone)]
struct Accepted {
    uid: String,
    version: String,
    config: Known<ClusterConfig>,
    greeted: Option<String>,
}

/// Collects what there is to know.
pub struct Observer {
    /// For single reads.
    pub client: Client,
    /// What the watches said.
    pub mirrors: Arc<Mirrors>,
    /// Secrets.
    pub secrets: Arc<Secrets>,
    /// Agents.
    pub agents: Arc<Agents>,
    /// What the operator's own settings say of agents.
    pub to_agents: ToAgents,
    configs: Mutex<HashMap<ClusterKey, Accepted>>,
}

/// What the operator's own settings say of agents.
#[derive(Debug, Clone)]
pub struct ToAgents {
    /// Image that brings them.
    pub image: String,
    /// Where they send traces.
    pub traces: Option<Collector>,
}

/// A world in which nothing but the object is known.
pub fn blank(object: ObjectFacts, to_agents: &ToAgents) -> World {
    let unknown = || "it was not looked at".to_owned();
    World {
        now: Timestamp::now(),
        agent_image: to_agents.image.clone(),
        traces: to_agents.traces.clone(),
        object,
        crd_degraded: false,
        config: Known::Absent,
        greeted: None,
        children: Known::Unknown(unknown()),
        secrets: BTreeMap::new(),
        user_secrets: BTreeMap::new(),
        lease: Known::Unknown(unknown()),
        pods: Known::Unknown(unknown()),
        volumes: Known::Unknown(unknown()),
        reports: BTreeMap::new(),
        backups_degraded: false,
        backups: Known::Unknown(unknown()),
        restore_from: Known::Absent,
        verify: Known::Unknown(unknown()),
        failures: Vec::new(),
    }
}

impl Observer {
    /// An observer.
    pub fn new(
        client: Client,
        mirrors: Arc<Mirrors>,
        secrets: Arc<Secrets>,
        agents: Arc<Agents>,
        to_agents: ToAgents,
    ) -> Self {
        Self { client, mirrors, secrets, agents, to_agents, configs: Mutex::default() }
    }

    /// The cluster is gone.
    pub fn forget(&self, cluster: &ClusterKey) {
        self.configs.lock().unwrap_or_else(PoisonError::into_inner).remove(cluster);
        self.agents.forget(cluster);
    }

    /// Everything of one cluster.
    #[tracing::instrument(skip_all)]
    pub async fn observe(
        &self,
        cluster: &ClusterKey,
        object: ObjectFacts,
        (crd_degraded, backups_degraded): (bool, Option<&str>),
        failures: Vec<Failure>,
    ) -> World {
        let mut world = World {
            crd_degraded,
            backups_degraded: backups_degraded.is_some(),
            failures,
            ..blank(object, &self.to_agents)
        };
        if let Some(missing) = self.mirrors.unsynced() {
            let why = format!("the watch of {missing} is not complete yet");
            world.children = Known::Unknown(why.clone());
            world.config = Known::Unknown(why);
            return world;
        }
        let children = self.children(cluster);
        let names = world.object.names.clone();
        let config_id = ChildId::new(Kind::ConfigMap, names.config_map());
        let (config, greeted) = self.config(cluster, &names, children.get(&config_id)).await;
        (world.config, world.greeted) = (config, greeted);
        world.children = Known::Present(children);
        world.restore_from = self.restore_from(cluster, &world).await;
        let mut pods: BTreeMap<u8, PodFacts> =
            self.mirrors.pods.of(cluster).into_values().map(|pod| (pod.ordinal, pod)).collect();
        let (secrets, user_secrets, volumes_and_lease) = futures::join!(
            self.secrets.observe(cluster),
            self.user_secrets(cluster, &world),
            self.volumes_and_lease(cluster, &names),
        );
        world.secrets = secrets;
        world.user_secrets = user_secrets;
        (world.volumes, world.lease) = volumes_and_lease;
        self.explain_volumes(&mut world.volumes, &mut pods).await;
        world.reports = self.reports(cluster, &world, &pods).await;
        world.pods = Known::Present(pods);
        world.verify = if self.mirrors.verify.synced() {
            self.mirrors.verify.get(cluster, &world.object.names.verify_pod()).into()
        } else {
            Known::Unknown("the watch of scratch Pods is not complete yet".into())
        };
        world.backups = match backups_degraded {
            Some(why) => Known::Unknown(why.into()),
            None => self.backups(cluster, &world).await,
        };
        world
    }

    /// The backups of the cluster. Before one is ended because its HelloBackup is missing, the API server is asked.
    async fn backups(&self, cluster: &ClusterKey, world: &World) -> Known<Vec<BackupFacts>> {
        if !self.mirrors.backups.synced() {
            return Known::Unknown("the watch of hellobackups is not complete yet".into());
        }
        let known: Vec<BackupFacts> = self.mirrors.backups.of(cluster).into_values().collect();
        let mut running = world.reports.values().filter_map(Known::present).filter_map(|report| {
            let backup = report.store.as_ref()?.backup.as_ref()?;
            backup.end.is_none().then_some(&backup.id)
        });
        if running.all(|id| known.iter().any(|facts| facts.uid == *id)) {
            return Known::Present(known);
        }
        match backups::consistent(&self.client, cluster).await {
            Ok(all) => Known::Present(all),
            Err(error) => Known::Unknown(error.to_string()),
        }
    }

    /// The HelloBackup that a new cluster is restored from.
    async fn restore_from(&self, cluster: &ClusterKey, world: &World) -> Known<BackupFacts> {
        let named = world.object.spec.as_ref().and_then(|spec| spec.bootstrap.restore.as_ref()?.backup.as_deref());
        match named {
            // An existing cluster has begun already.
            Some(name) if world.config.is_absent() => backups::named(&self.client, &cluster.namespace, name).await,
            _ => Known::Absent,
        }
    }

    fn children(&self, cluster: &ClusterKey) -> BTreeMap<ChildId, ChildMeta> {
        let mut children = BTreeMap::new();
        for (kind, mirror) in Kind::PLAIN.iter().zip(&self.mirrors.plain) {
            for (name, plain) in mirror.of(cluster) {
                let edited = plain.owned.edited();
                children.insert(ChildId::new(*kind, name), ChildMeta { edited, ..plain.meta });
            }
        }
        children
    }

    async fn config(
        &self,
        cluster: &ClusterKey,
        names: &Names,
        meta: Option<&ChildMeta>,
    ) -> (Known<ClusterConfig>, Option<String>) {
        let Some(meta) = meta else { return (Known::Absent, None) };
        let known = self.configs.lock().unwrap_or_else(PoisonError::into_inner).get(cluster).cloned();
        if let Some(known) = known.filter(|known| known.uid == meta.uid && known.version == meta.version) {
            return (known.config, known.greeted);
        }
        let name = names.config_map();
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), &cluster.namespace);
        match call(format!("ConfigMap {name} cannot be read"), api.get_opt(&name)).await {
            Err(error) => (Known::Unknown(error.to_string()), None),
            Ok(None) => (Known::Absent, None),
            Ok(Some(map)) => {
                let text = map.data.as_ref().and_then(|data| data.get(CONFIG_KEY));
                // One that cannot be read is written anew, like one that is missing.
                let config = Known::from(text.and_then(|text| serde_json::from_str(text).ok()));
                let known = Accepted {
                    uid: map.metadata.uid.clone().unwrap_or_default(),
                    version: map.metadata.resource_version.clone().unwrap_or_default(),
                    config,
                    greeted: facts::annotation(&map.metadata, ANNOTATION_GREETED).map(Into::into),
                };
                self.configs.lock().unwrap_or_else(PoisonError::into_inner).insert(cluster.clone(), known.clone());
                (known.config, known.greeted)
            }
        }
    }

    async fn user_secrets(&self, cluster: &ClusterKey, world: &World) -> BTreeMap<SecretKind, Known<UserSecret>> {
        let accepted = crate::core::accept::accept(world);
        let Ok(accepted) = accepted else { return BTreeMap::new() };
        let named = [
            (SecretKind::App, accepted.cluster.secrets.app),
            (SecretKind::Superuser, accepted.cluster.secrets.superuser),
            (SecretKind::Server, accepted.cluster.certificates.server),
        ];
        let looks = named.into_iter().filter_map(|(kind, name)| {
            let name = name?;
            Some(async move { (kind, self.secrets.user(cluster, kind, &name).await) })
        });
        join_all(looks).await.into_iter().collect()
    }

    async fn volumes_and_lease(
        &self,
        cluster: &ClusterKey,
        names: &Names,
    ) -> (Known<BTreeMap<(u8, Volume), VolumeFacts>>, Known<LeaseFacts>) {
        let volumes = |all: Vec<VolumeFacts>| {
            Known::Present(all.into_iter().map(|volume| ((volume.ordinal, volume.volume), volume)).collect())
        };
        if let Some(lease) = self.mirrors.leases.get(cluster, &names.lease()) {
            return (volumes(self.mirrors.volumes.of(cluster).into_values().collect()), Known::Present(lease));
        }
        // What follows from a missing Lease cannot be taken back: a watch may be behind, so the API server is asked.
        match self.consistent(cluster, names).await {
            Ok((all, lease)) => (volumes(all), lease.into()),
            Err(error) => (Known::Unknown(error.to_string()), Known::Unknown(error.to_string())),
        }
    }

    async fn consistent(
        &self,
        cluster: &ClusterKey,
        names: &Names,
    ) -> Result<(Vec<VolumeFacts>, Option<LeaseFacts>), Error> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &cluster.namespace);
        let leases = Api::<Lease>::namespaced(self.client.clone(), &cluster.namespace);
        let selector = format!("{LABEL_CLUSTER}={},{LABEL_MANAGED_BY}={MANAGED_BY}", cluster.name);
        let params = ListParams::default().labels(&selector);
        let name = names.lease();
        let (claims, lease) = futures::join!(
            call("volumes cannot be listed", claims.list(&params)),
            call(format!("Lease {name} cannot be read"), leases.get_opt(&name)),
        );
        let all = claims?.items.iter().filter_map(facts::volume).map(|(_, _, facts)| facts).collect();
        Ok((all, lease?.as_ref().and_then(facts::lease).map(|(_, _, facts)| facts)))
    }

    /// Says why volumes stay unbound, where the Pods only say that they wait for them.
    async fn explain_volumes(
        &self,
        volumes: &mut Known<BTreeMap<(u8, Volume), VolumeFacts>>,
        pods: &mut BTreeMap<u8, PodFacts>,
    ) {
        let Known::Present(volumes) = volumes else { return };
        let mut classes: HashMap<Option<String>, Option<Trouble>> = HashMap::new();
        for volume in volumes.values_mut().filter(|volume| !volume.bound) {
            let waits = pods.get(&volume.ordinal).and_then(|pod| pod.trouble.as_ref());
            if waits.is_none_or(|trouble| trouble.reason != "Unschedulable") {
                continue;
            }
            let trouble = if let Some(known) = classes.get(&volume.class) {
                known.clone()
            } else {
                let found = self.class_trouble(volume.class.as_deref()).await;
                classes.insert(volume.class.clone(), found.clone());
                found
            };
            if let Some(trouble) = trouble {
                // The scheduler's words about it would only repeat it, less clearly.
                if let Some(pod) = pods.get_mut(&volume.ordinal) {
                    pod.trouble = Some(trouble.clone());
                }
                volume.trouble = Some(trouble);
            }
        }
    }

    async fn class_trouble(&self, class: Option<&str>) -> Option<Trouble> {
        let api = Api::<StorageClass>::all(self.client.clone());
        let sentence = match class {
            Some("") => return None,
            Some(name) => {
                let found = call("StorageClass cannot be read", api.get_metadata_opt(name)).await.ok()?;
                if found.is_some() {
                    return None;
                }
                format!(
                    "the StorageClass {name} of the volumes does not exist: create it, or make a new object with another storage.storageClassName"
                )
            }
            None => {
                let all =
                    call("StorageClasses cannot be listed", api.list_metadata(&ListParams::default())).await.ok()?;
                let default = all.items.iter().any(|class| {
                    facts::annotation(&class.metadata, "storageclass.kubernetes.io/is-default-class") == Some("true")
                });
                if default {
                    return None;
                }
                "the Kubernetes cluster has no default StorageClass: mark one as default, or make a new object with storage.storageClassName".into()
            }
        };
        Some(Trouble { reason: "StorageClassMissing".into(), sentence })
    }

    async fn reports(
        &self,
        cluster: &ClusterKey,
        world: &World,
        pods: &BTreeMap<u8, PodFacts>,
    ) -> BTreeMap<u8, Known<Report>> {
        let targets: Vec<(u8, Target, &str)> = pods
            .values()
            .filter(|pod| pod.running && !pod.meta.deleting)
            .filter_map(|pod| {
                let instance = world.object.names.instance(pod.ordinal);
                Some((pod.ordinal, target(cluster, instance, pod)?, pod.meta.uid.as_str()))
            })
            .collect();
        let Some(Known::Present(authority)) = world.secrets.get(&SecretKind::Ca) else { return BTreeMap::new() };
        if targets.is_empty() {
            return BTreeMap::new();
        }
        let period = world.now.as_second() / OWN_CERTIFICATE;
        let version = format!("{}/{}/{period}", authority.meta.uid, authority.meta.version);
        if !self.agents.trusts(cluster, &version) {
            let trusted = match self.secrets.authority(cluster).await {
                Ok(pair) => self.agents.trust(cluster, &version, &pair, world.now),
                Err(error) => Err(error),
            };
            if let Err(error) = trusted {
                return targets.iter().map(|(ordinal, ..)| (*ordinal, Known::Unknown(error.to_string()))).collect();
            }
        }
        let asks = targets.iter().map(|(ordinal, target, uid)| async move {
            let known = match self.agents.report(target).await {
                Ok(report) if report.pod_uid == *uid => Known::Present(report),
                Ok(_) => Known::Unknown("an earlier Pod answered".into()),
                Err(error) => Known::Unknown(error.to_string()),
            };
            (*ordinal, known)
        });
        join_all(asks).await.into_iter().collect()
    }
}

/// How to reach the agent of a Pod.
pub fn target(cluster: &ClusterKey, instance: String, pod: &PodFacts) -> Option<Target> {
    Some(Target { cluster: cluster.clone(), instance, address: pod.address.as_ref()?.parse().ok()? })
}
