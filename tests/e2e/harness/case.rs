//! One case: a namespace, and what a user does and sees in it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use hello_operator::api::names::Names;
use hello_operator::api::spec::HelloOperator;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::suite::Suite;
use super::{READY, Result, SOON, Said};
use crate::cluster::{AuditLog, eventually};

/// A case that runs.
#[derive(Clone)]
pub struct Case {
    suite: &'static Suite,
    client: Client,
    namespace: String,
    namespaces: Arc<Mutex<Vec<String>>>,
}

impl Case {
    pub(super) async fn begin(suite: &'static Suite, name: &str) -> Result<Self> {
        let client = suite.cluster().client().await?;
        let namespaces = Arc::new(Mutex::new(Vec::new()));
        let mut case = Self { suite, client, namespace: String::new(), namespaces };
        case.namespace = case.new_namespace(name).await?;
        Ok(case)
    }

    pub(super) fn namespaces(&self) -> Arc<Mutex<Vec<String>>> {
        self.namespaces.clone()
    }

    /// Removes the namespaces, and waits until what ran in them is gone: it would slow the next case down.
    pub async fn end(&self) -> Result {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let names = self.namespaces.lock().await.clone();
        for name in &names {
            // One that is gone is what is wanted.
            let _ = all.delete(name, &DeleteParams::default()).await;
        }
        for name in &names {
            eventually(2 * SOON, &format!("namespace {name} to be gone"), || async {
                match all.get_opt(name).await {
                    Ok(None) => Ok(()),
                    Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
                    Err(error) => Err(error.to_string()),
                }
            })
            .await?;
        }
        Ok(())
    }

    /// A further namespace for the same case, where only Pods of the restricted profile are admitted.
    pub async fn new_namespace(&self, name: &str) -> Result<String> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let object = json!({"metadata": {"generateName": format!("e2e-{name}-"), "labels": {
            "hello-operator/e2e": "true", "pod-security.kubernetes.io/enforce": "restricted"}}});
        let created = all.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        let name = created.name_any();
        self.namespaces.lock().await.push(name.clone());
        Ok(name)
    }

    /// The same case in another of its namespaces.
    pub fn within(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn suite(&self) -> &'static Suite {
        self.suite
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Objects of a kind in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// kubectl in the namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<Said> {
        self.kubectl_with(arguments, "").await
    }

    /// The same with something to read.
    pub async fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<Said> {
        let arguments: Vec<_> = ["-n", &self.namespace].into_iter().chain(arguments.iter().copied()).collect();
        self.suite.kubectl(&arguments, input).await
    }

    /// `kubectl apply -f -`.
    pub async fn apply(&self, manifest: &Value) -> Result<Said> {
        self.kubectl_with(&["apply", "-f", "-"], &manifest.to_string()).await
    }

    /// Applies a HelloOperator with this spec.
    pub async fn hello(&self, name: &str, spec: Value) -> Result {
        self.apply(&hello(name, spec)).await?.ok().map(drop)
    }

    /// Changes the spec of a HelloOperator by a merge patch.
    pub async fn change(&self, name: &str, spec: Value) -> Result {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.api::<HelloOperator>().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Scales as users do.
    pub async fn scale(&self, name: &str, replicas: u8) -> Result {
        let (target, replicas) = (format!("helloop/{name}"), format!("--replicas={replicas}"));
        self.kubectl(&["scale", &target, &replicas]).await?.ok().map(drop)
    }

    /// A HelloOperator with this spec that is Ready.
    pub async fn running(&self, name: &str, spec: Value) -> Result<HelloOperator> {
        self.hello(name, spec).await?;
        self.ready(name).await
    }

    /// Waits until a HelloOperator is Ready and nothing is left to be done for what its spec says now.
    pub async fn ready(&self, name: &str) -> Result<HelloOperator> {
        self.until(READY, name, "Ready and settled", |object| {
            current(object)?;
            expect(object, "Ready", true)?;
            expect(object, "Progressing", false)
        })
        .await
    }

    /// Waits until a condition of a HelloOperator, for what its spec says now, has this value and names a cause.
    pub async fn says(&self, name: &str, kind: &str, holds: bool, cause: &str) -> Result<String> {
        let what = format!("{kind}={holds}, naming {cause:?}");
        let object = self.until(SOON, name, &what, |object| {
            current(object)?;
            expect(object, kind, holds)?;
            let found = condition(object, kind).map(|found| found.message.clone()).unwrap_or_default();
            if found.contains(cause) { Ok(()) } else { Err(format!("{kind} says {found:?}")) }
        });
        Ok(condition(&object.await?, kind).map(|found| found.message.clone()).unwrap_or_default())
    }

    /// Waits until a HelloOperator passes a check; what it lacks is in the error.
    pub async fn until(
        &self,
        limit: Duration,
        name: &str,
        what: &str,
        check: impl Fn(&HelloOperator) -> Result<(), String>,
    ) -> Result<HelloOperator> {
        let objects: Api<HelloOperator> = self.api();
        let what = format!("{name} to be {what}");
        let found = eventually(limit, &what, || async {
            let object = objects.get(name).await.map_err(|error| error.to_string())?;
            check(&object)?;
            Ok::<_, String>(object)
        });
        Ok(found.await?)
    }

    /// Waits until the object of this name and kind is gone.
    pub async fn gone<K>(&self, name: &str) -> Result
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let objects: Api<K> = self.api();
        eventually(SOON, &format!("{} {name} to be gone", K::kind(&())), || async {
            match objects.get_metadata_opt(name).await {
                Ok(None) => Ok(()),
                Ok(Some(_)) => Err("it is there".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        Ok(())
    }

    /// Deletes an object and waits until another one stands in its place. What does not hear that it is to end, as a Pod
    /// with a frozen agent, is there for all of its grace.
    pub async fn replaced<K>(&self, name: &str) -> Result
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let objects: Api<K> = self.api();
        let before = objects.get_metadata(name).await?.uid();
        let deleted = objects.delete(name, &DeleteParams::default()).await?;
        let grace = deleted.left().and_then(|object| object.meta().deletion_grace_period_seconds).unwrap_or_default();
        let patience = SOON + Duration::from_secs(grace.unsigned_abs());
        eventually(patience, &format!("{} {name} to come back", K::kind(&())), || async {
            match objects.get_metadata_opt(name).await {
                Ok(Some(found)) if found.uid() != before && found.meta().deletion_timestamp.is_none() => Ok(()),
                Ok(Some(_)) => Err("the old one is there".to_owned()),
                Ok(None) => Err("it is missing".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        Ok(())
    }

    /// The instance Pods, by name.
    pub async fn pods(&self, name: &str) -> Result<Vec<Pod>> {
        let selector = ListParams::default().labels(&format!("terry.com/cluster={name},terry.com/instance"));
        let mut pods = self.api::<Pod>().list(&selector).await?.items;
        pods.sort_by_key(ResourceExt::name_any);
        Ok(pods)
    }

    /// Names of the claims of volumes.
    pub async fn volumes(&self, name: &str) -> Result<Vec<String>> {
        let selector = ListParams::default().labels(&format!("terry.com/cluster={name}"));
        let claims = self.api::<PersistentVolumeClaim>().list(&selector).await?;
        let mut names: Vec<_> = claims
            .iter()
            .filter(|claim| claim.metadata.deletion_timestamp.is_none())
            .map(ResourceExt::name_any)
            .collect();
        names.sort();
        Ok(names)
    }

    /// The value of a Secret's key.
    pub async fn secret(&self, name: &str, key: &str) -> Result<String> {
        let secret = self.api::<Secret>().get(name).await?;
        let value = secret.data.and_then(|mut data| data.remove(key));
        Ok(String::from_utf8(value.ok_or_else(|| format!("{name} has no {key}"))?.0)?)
    }

    /// By which the application connects.
    pub async fn uri(&self, name: &str) -> Result<String> {
        self.secret(&Names::new(name).secret_app(), "uri").await
    }

    /// Who takes writes, as the status says.
    pub async fn primary(&self, name: &str) -> Result<String> {
        let status = self.api::<HelloOperator>().get(name).await?.status;
        Ok(status.and_then(|status| status.primary).ok_or("the status names no primary")?.instance)
    }

    /// Everybody else.
    pub async fn replicas(&self, name: &str) -> Result<Vec<String>> {
        let primary = self.primary(name).await?;
        Ok(self.pods(name).await?.iter().map(ResourceExt::name_any).filter(|pod| *pod != primary).collect())
    }

    /// A statement in the database `app` of an instance, as its superuser, past all Services.
    pub async fn sql(&self, instance: &str, statement: &str) -> Result<String> {
        Ok(self.suite.cluster().sql(&self.namespace, instance, "app", statement).await?)
    }

    /// Waits until a statement on an instance gives this.
    pub async fn sql_gives(&self, instance: &str, statement: &str, expected: &str) -> Result {
        eventually(SOON, &format!("{instance} to answer {expected:?} to {statement:?}"), || async {
            match self.sql(instance, statement).await {
                Ok(answer) if answer == expected => Ok(()),
                Ok(answer) => Err(format!("{answer:?}")),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        Ok(())
    }

    /// Waits for an event about an object with this reason (any where it is empty) and a note that names the cause.
    pub async fn event(&self, object: &str, reason: &str, cause: &str) -> Result<String> {
        let events: Api<Event> = self.api();
        let what = format!("an event {reason} about {object} that names {cause:?}");
        let found = eventually(SOON, &what, || async {
            let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let about: Vec<_> = all
                .items
                .into_iter()
                .filter(|event| event.involved_object.name.as_deref() == Some(object))
                .filter(|event| event.involved_object.kind.as_deref() == Some("HelloOperator"))
                .map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default()))
                .collect();
            let hit = about.iter().find(|(why, note)| (reason.is_empty() || why == reason) && note.contains(cause));
            hit.map(|(_, note)| note.clone()).ok_or_else(|| format!("{about:?}"))
        });
        Ok(found.await?)
    }

    /// What the API server is asked from now on.
    pub fn audit_log(&self) -> Result<AuditLog> {
        Ok(self.suite.cluster().audit_log()?)
    }
}

/// A HelloOperator as JSON.
fn hello(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "terry.com/v1", "kind": "HelloOperator", "metadata": {"name": name}, "spec": spec})
}

/// A condition of a HelloOperator.
pub fn condition<'a>(object: &'a HelloOperator, kind: &str) -> Option<&'a Condition> {
    object.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)
}

fn current(object: &HelloOperator) -> Result<(), String> {
    let observed = object.status.as_ref().and_then(|status| status.observed_generation);
    if observed == object.metadata.generation { Ok(()) } else { Err(format!("status of generation {observed:?}")) }
}

fn expect(object: &HelloOperator, kind: &str, holds: bool) -> Result<(), String> {
    let wanted = if holds { "True" } else { "False" };
    match condition(object, kind) {
        Some(found) if found.status == wanted => Ok(()),
        Some(found) => Err(format!("{kind}={} ({}): {}", found.status, found.reason, found.message)),
        None => Err(format!("there is no condition {kind}")),
    }
}

/// A text in JSON.
pub fn json_at(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}
