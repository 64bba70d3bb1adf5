//! The watches: each with a backoff of its own, so that one that fails delays no other. They fill the mirrors and wake the
//! queue.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Api, Client, Resource};
use kube_runtime::watcher;
use serde::de::DeserializeOwned;

use super::backups::{self, hello_backups};
use super::facts::{self, Plain};
use super::mirror::{ClusterKey, Facts, Mirror, Scope};
use super::object::Entry;
use super::queue::Queue;
use super::random::jitter;
use crate::api::Category;
use crate::api::names::{GROUP, KIND, LABEL_CLUSTER, LABEL_MANAGED_BY, LABEL_VERIFIES, MANAGED_BY, VERSION};
use crate::core::world::{BackupFacts, Kind, LeaseFacts, PodFacts, VerifyFacts, VolumeFacts};
use crate::telemetry::metrics::OperatorMetrics;

/// Some load balancers cut idle connections at 240 s.
const WATCH_SECONDS: u32 = 195;
/// Small pages: what a listing holds at a time is memory.
const PAGE: u32 = 200;
/// Pause after the first error of a watch.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause after errors of a watch.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Plural of HelloBackup.
const BACKUPS: &str = "hellobackups";

/// Everything that is watched.
#[derive(Default)]
pub struct Mirrors {
    /// The objects. The name in the mirror is the object's own.
    pub objects: Mirror<Entry>,
    /// Pods of instances.
    pub pods: Mirror<PodFacts>,
    /// Their volumes.
    pub volumes: Mirror<VolumeFacts>,
    /// Leases of primaries.
    pub leases: Mirror<LeaseFacts>,
    /// Scratch Pods that prove backups.
    pub verify: Mirror<VerifyFacts>,
    /// Backups, by the cluster that they name.
    pub backups: Mirror<BackupFacts>,
    /// Children of which only the metadata is watched, by kind (in the order of [`Kind::PLAIN`]).
    pub plain: [Mirror<Plain>; Kind::PLAIN.len()],
}

impl Mirrors {
    /// Filled by so many watches of each kind.
    pub fn filled_by(watches: usize) -> Self {
        let all = Self::default();
        all.objects.filled_by(watches);
        all.pods.filled_by(watches);
        all.volumes.filled_by(watches);
        all.leases.filled_by(watches);
        all.verify.filled_by(watches);
        all.backups.filled_by(watches);
        for mirror in &all.plain {
            mirror.filled_by(watches);
        }
        all
    }

    /// The mirror of a plain kind.
    pub fn plain(&self, kind: Kind) -> Option<&Mirror<Plain>> {
        Kind::PLAIN.iter().position(|plain| *plain == kind).and_then(|at| self.plain.get(at))
    }

    /// The first watch whose listing is not complete. Backups are none of them: without their definition, which an older chart does
    /// not bring, clusters run all the same.
    pub fn unsynced(&self) -> Option<&'static str> {
        let own = [
            ("helloopperators", self.objects.synced()),
            ("pods", self.pods.synced()),
            ("persistentvolumeclaims", self.volumes.synced()),
            ("leases", self.leases.synced()),
        ];
        let plain = Kind::PLAIN.iter().zip(&self.plain).map(|(kind, mirror)| (kind.resource().3, mirror.synced()));
        own.into_iter().chain(plain).find(|(_, synced)| !synced).map(|(name, _)| name)
    }
}

/// What watches need.
#[derive(Clone)]
pub struct Watching {
    /// For reading only.
    pub client: Client,
    /// What they fill.
    pub mirrors: Arc<Mirrors>,
    /// What they wake.
    pub queue: Arc<Queue>,
    /// Where they count.
    pub metrics: Arc<OperatorMetrics>,
    /// What this one covers.
    pub scope: Scope,
}

impl Watching {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match &self.scope {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn api_of(&self, resource: &ApiResource) -> Api<DynamicObject> {
        match &self.scope {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }
}

/// The resource of HelloOperator.
pub fn hello_operators() -> ApiResource {
    ApiResource {
        group: GROUP.into(),
        version: VERSION.into(),
        api_version: format!("{GROUP}/{VERSION}"),
        kind: KIND.into(),
        plural: "helloopperators".into(),
    }
}

fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE)
}

fn ours() -> watcher::Config {
    config().labels(&format!("{LABEL_CLUSTER},{LABEL_MANAGED_BY}={MANAGED_BY}"))
}

/// What became of a watched thing.
#[derive(Clone, Copy)]
pub enum News<'a, T> {
    /// It is new, or differs from what it was.
    Changed(Option<&'a T>, &'a T),
    /// It is gone.
    Gone(&'a T),
}

/// Begins all watches of one scope. `tell` hears of every change of an object.
pub fn start(watching: &Watching, tell: impl Fn(&ClusterKey, News<'_, Entry>) + Send + Sync + 'static) {
    let objects = watching.api_of(&hello_operators());
    let read =
        |object: DynamicObject| Entry::read(object).map(|(key, entry)| (key.clone(), key.name.to_string(), entry));
    follow(watching, objects, config(), "helloopperators", |mirrors| Some(&mirrors.objects), read, tell);

    let quiet = |_: &ClusterKey, _: News<'_, _>| {};
    let pods = watching.api::<Pod>();
    follow(watching, pods, ours(), "pods", |m| Some(&m.pods), |pod| facts::pod(&pod), quiet);
    let quiet = |_: &ClusterKey, _: News<'_, _>| {};
    let scratch = config().labels(&format!("{LABEL_VERIFIES},{LABEL_MANAGED_BY}={MANAGED_BY}"));
    let pods = watching.api::<Pod>();
    follow(watching, pods, scratch, "pods", |m| Some(&m.verify), |pod| facts::verify(&pod), quiet);
    let quiet = |_: &ClusterKey, _: News<'_, _>| {};
    let claims = watching.api::<PersistentVolumeClaim>();
    let read = |claim| facts::volume(&claim);
    follow(watching, claims, ours(), "persistentvolumeclaims", |m| Some(&m.volumes), read, quiet);
    let quiet = |_: &ClusterKey, _: News<'_, _>| {};
    let leases = watching.api::<Lease>();
    follow(watching, leases, ours(), "leases", |m| Some(&m.leases), |lease| facts::lease(&lease), quiet);

    let quiet = |_: &ClusterKey, _: News<'_, _>| {};
    let backups = watching.api_of(&hello_backups());
    follow(watching, backups, config(), BACKUPS, |m| Some(&m.backups), backups::read, quiet);

    metadata::<ConfigMap>(watching, Kind::ConfigMap);
    metadata::<ServiceAccount>(watching, Kind::ServiceAccount);
    metadata::<Role>(watching, Kind::Role);
    metadata::<RoleBinding>(watching, Kind::RoleBinding);
    metadata::<Service>(watching, Kind::Service);
    metadata::<EndpointSlice>(watching, Kind::EndpointSlice);
    metadata::<PodDisruptionBudget>(watching, Kind::PodDisruptionBudget);
}

fn metadata<K>(watching: &Watching, kind: Kind)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static,
{
    let api = watching.api::<PartialObjectMeta<K>>();
    let read = move |object: PartialObjectMeta<K>| {
        let (cluster, name) = facts::place(&object.metadata)?;
        Some((cluster, name, Plain::of(&object.metadata)))
    };
    follow(watching, api, ours(), kind.resource().3, move |m| m.plain(kind), read, |_, _| {});
}

fn not_found(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

/// Runs one watch for as long as the process lives.
fn follow<K, T>(
    watching: &Watching,
    api: Api<K>,
    config: watcher::Config,
    name: &'static str,
    mirror: impl Fn(&Mirrors) -> Option<&Mirror<T>> + Send + Sync + 'static,
    read: impl Fn(K) -> Option<(ClusterKey, String, T)> + Send + Sync + 'static,
    tell: impl Fn(&ClusterKey, News<'_, T>) + Send + Sync + 'static,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Clone,
    T: Facts,
{
    let Watching { mirrors, queue, metrics, scope, .. } = watching.clone();
    // Each namespace has watches of its own, and each of them may hang.
    let watch = scope.as_ref().map_or_else(|| name.to_owned(), |namespace| format!("{name} in {namespace}"));
    metrics.watch_progressed(&watch);
    tokio::spawn(async move {
        let Some(mirror) = mirror(&mirrors) else { return };
        let mut stream = std::pin::pin!(watcher(api, config));
        let mut pause = FIRST_PAUSE;
        let put = |object: K| {
            let Some((cluster, name, facts)) = read(object) else { return };
            let (before, matters) = mirror.put(&cluster, &name, facts.clone());
            if matters {
                tell(&cluster, News::Changed(before.as_ref(), &facts));
                queue.add(cluster, Duration::ZERO);
            }
        };
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    // An Init comes before each attempt to list, also before one that fails.
                    if !matches!(event, watcher::Event::Init) {
                        metrics.watch_progressed(&watch);
                        pause = FIRST_PAUSE;
                    }
                    match event {
                        watcher::Event::Init => mirror.begin(&scope),
                        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => put(object),
                        watcher::Event::InitDone => {
                            for (cluster, facts) in mirror.complete(&scope) {
                                tell(&cluster, News::Gone(&facts));
                                queue.add(cluster, Duration::ZERO);
                            }
                        }
                        watcher::Event::Delete(object) => {
                            if let Some((cluster, name, facts)) = read(object) {
                                mirror.remove(&cluster, &name);
                                tell(&cluster, News::Gone(&facts));
                                queue.add(cluster, Duration::ZERO);
                            }
                        }
                    }
                }
                // The history that the watch would go on from is compacted away: it lists anew, at once.
                Err(watcher::Error::WatchError(status)) if status.code == 410 => {
                    tracing::debug!(resource = watch, "listed anew");
                }
                // The definition is not there (yet): an answer, which the process does not have to end for.
                Err(error) if name == BACKUPS && not_found(&error) => {
                    metrics.watch_progressed(&watch);
                    tracing::debug!(resource = watch, "there is no such kind");
                    tokio::time::sleep(jitter(LONGEST_PAUSE)).await;
                }
                Err(error) => {
                    metrics.failed(Category::Api);
                    tracing::warn!(resource = watch, %error, "watch failed; it is begun again in {} ms", pause.as_millis());
                    tokio::time::sleep(jitter(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    });
}
