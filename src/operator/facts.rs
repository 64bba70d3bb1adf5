//! From Kubernetes' objects to facts.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::mirror::{ClusterKey, Facts};
use super::owned::Owned;
use crate::api::agent::Lsn;
use crate::api::names::{
    ANNOTATION_HAND_OVER, ANNOTATION_HASH, ANNOTATION_RESTART, ANNOTATION_SECRETS, ANNOTATION_TEMPLATE, CONTAINER,
    GROUP, KIND, LABEL_CLUSTER, LABEL_MANAGED_BY, LABEL_ROLE, LABEL_VERIFIES, LABEL_VOLUME, MANAGED_BY, Names,
};
use crate::api::verify::VerifyResult;
use crate::core::election::Register;
use crate::core::quantity;
use crate::core::trouble;
use crate::core::world::{ChildMeta, Known, LeaseFacts, Owner, PodFacts, VerifyFacts, Volume, VolumeFacts};

/// The cluster that an object says it belongs to, and the object's name.
pub fn place(meta: &ObjectMeta) -> Option<(ClusterKey, String)> {
    let cluster = meta.labels.as_ref()?.get(LABEL_CLUSTER)?;
    Some((ClusterKey::new(meta.namespace.as_deref()?, cluster.as_str()), meta.name.clone()?))
}

/// An annotation of an object.
pub fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

/// A child's metadata.
pub fn child(meta: &ObjectMeta) -> ChildMeta {
    let label = |name: &str| meta.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    let controller = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let owner = match controller {
        Some(owner) if owner.kind == KIND && owner.api_version.starts_with(&format!("{GROUP}/")) => {
            Owner::Object(owner.uid.clone())
        }
        None if label(LABEL_MANAGED_BY) == Some(MANAGED_BY) && label(LABEL_CLUSTER).is_some() => Owner::Adoptable,
        _ => Owner::Foreign,
    };
    ChildMeta {
        uid: meta.uid.clone().unwrap_or_default(),
        version: meta.resource_version.clone().unwrap_or_default(),
        owner,
        created: meta.creation_timestamp.as_ref().map(|time| time.0),
        hash: annotation(meta, ANNOTATION_HASH).map(Into::into),
        deleting: meta.deletion_timestamp.is_some(),
        edited: false,
    }
}

/// Whether a difference in metadata matters: the version alone does not.
fn child_differs(before: &ChildMeta, after: &ChildMeta) -> bool {
    (&before.uid, &before.owner, &before.hash, before.deleting)
        != (&after.uid, &after.owner, &after.hash, after.deleting)
}

/// A child of which only the metadata is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plain {
    /// Its metadata.
    pub meta: ChildMeta,
    /// Which of its fields are ours.
    pub owned: Owned,
}

impl Plain {
    /// From its metadata.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self { meta: child(meta), owned: Owned::of(meta) }
    }
}

impl Facts for Plain {
    fn differs(&self, next: &Self) -> bool {
        child_differs(&self.meta, &next.meta) || next.owned.edited()
    }

    fn after(self, before: &Self) -> Self {
        if self.meta.uid == before.meta.uid { Self { owned: self.owned.after(before.owned), ..self } } else { self }
    }
}

impl Facts for PodFacts {
    fn differs(&self, next: &Self) -> bool {
        let plain = |facts: &Self| {
            let mut facts = facts.clone();
            facts.meta.version.clear();
            facts
        };
        plain(self) != plain(next)
    }
}

impl Facts for VerifyFacts {
    fn differs(&self, next: &Self) -> bool {
        child_differs(&self.meta, &next.meta) || self.ended != next.ended || self.trouble != next.trouble
    }
}

impl Facts for VolumeFacts {
    fn differs(&self, next: &Self) -> bool {
        let plain = |facts: &Self| {
            let mut facts = facts.clone();
            facts.meta.version.clear();
            facts
        };
        plain(self) != plain(next)
    }
}

/// The register without what every renewal changes: the holder's position.
fn standing(register: &Known<Register>) -> Known<Register> {
    match register {
        Known::Present(register) => Known::Present(Register { end: Lsn::default(), ..register.clone() }),
        other => other.clone(),
    }
}

impl Facts for LeaseFacts {
    fn differs(&self, next: &Self) -> bool {
        child_differs(&self.meta, &next.meta)
            || standing(&self.register) != standing(&next.register)
            || self.hand_over != next.hand_over
    }
}

/// A Pod's facts; None for one that is no instance.
pub fn pod(pod: &Pod) -> Option<(ClusterKey, String, PodFacts)> {
    let (cluster, name) = place(&pod.metadata)?;
    let ordinal = Names::new(&*cluster.name).ordinal(&name)?;
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let condition = |kind: &str| {
        status
            .and_then(|status| status.conditions.as_ref())
            .is_some_and(|all| all.iter().any(|c| c.type_ == kind && c.status == "True"))
    };
    let running = status
        .and_then(|status| status.container_statuses.as_ref())
        .and_then(|all| all.iter().find(|container| container.name == CONTAINER))
        .and_then(|container| container.state.as_ref())
        .is_some_and(|state| state.running.is_some());
    let label = |name: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(name)).cloned();
    let facts = PodFacts {
        meta: child(&pod.metadata),
        ordinal,
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        address: status.and_then(|status| status.pod_ip.clone()),
        ready: condition("Ready"),
        running,
        ended: matches!(phase, Some("Failed" | "Succeeded")),
        template: annotation(&pod.metadata, ANNOTATION_TEMPLATE).and_then(|text| serde_json::from_str(text).ok()),
        secrets: annotation(&pod.metadata, ANNOTATION_SECRETS).map(Into::into),
        restart: annotation(&pod.metadata, ANNOTATION_RESTART).map(Into::into),
        role: label(LABEL_ROLE),
        trouble: trouble::of_pod(pod),
    };
    Some((cluster, name, facts))
}

/// A scratch Pod's facts.
pub fn verify(pod: &Pod) -> Option<(ClusterKey, String, VerifyFacts)> {
    let meta = &pod.metadata;
    let cluster = meta.labels.as_ref()?.get(LABEL_VERIFIES)?;
    let key = ClusterKey::new(meta.namespace.as_deref()?, cluster.as_str());
    let facts = VerifyFacts { meta: child(meta), ended: ended(pod), trouble: trouble::of_pod(pod) };
    Some((key, meta.name.clone()?, facts))
}

/// How a scratch Pod ended: what its program left, or what Kubernetes says of its end.
fn ended(pod: &Pod) -> Option<Result<VerifyResult, String>> {
    let status = pod.status.as_ref()?;
    let container = status.container_statuses.iter().flatten().find(|container| container.name == CONTAINER);
    let left = container.and_then(|container| container.state.as_ref()?.terminated.as_ref());
    if !matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) && left.is_none() {
        return None;
    }
    let text = left.and_then(|left| left.message.as_deref()).unwrap_or_default();
    Some(serde_json::from_str(text).map_err(|_| match (status.message.as_deref().or(status.reason.as_deref()), left) {
        (Some(why), _) => format!("its Pod ended: {why}"),
        (None, Some(left)) => {
            let reason = left.reason.as_deref().unwrap_or("no reason was given");
            format!("its program ended without a result ({reason}, exit code {}): see its log", left.exit_code)
        }
        (None, None) => "its Pod ended without a result".to_owned(),
    }))
}

/// A volume's facts; None for one that is no instance's.
pub fn volume(claim: &PersistentVolumeClaim) -> Option<(ClusterKey, String, VolumeFacts)> {
    let (cluster, name) = place(&claim.metadata)?;
    let (instance, volume) = match claim.metadata.labels.as_ref()?.get(LABEL_VOLUME).map(String::as_str) {
        Some("data") => (name.as_str(), Volume::Data),
        Some("wal") => (name.strip_suffix("-wal")?, Volume::Wal),
        _ => return None,
    };
    let ordinal = Names::new(&*cluster.name).ordinal(instance)?;
    let requested = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"))
        .and_then(|size| quantity::parse(&size.0))
        .and_then(|bytes| u64::try_from(bytes).ok())
        .unwrap_or(0);
    let facts = VolumeFacts {
        meta: child(&claim.metadata),
        ordinal,
        volume,
        requested,
        bound: claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound"),
        class: claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()),
        trouble: None,
    };
    Some((cluster, name, facts))
}

/// The Lease's facts; None for a Lease of another name.
pub fn lease(lease: &Lease) -> Option<(ClusterKey, String, LeaseFacts)> {
    let (cluster, name) = place(&lease.metadata)?;
    if name != Names::new(&*cluster.name).lease() {
        return None;
    }
    let register = match Register::from_lease(lease) {
        Ok(register) => Known::Present(register),
        Err(error) => Known::Unknown(error.to_string()),
    };
    let since = lease.spec.as_ref().and_then(|spec| spec.acquire_time.as_ref()).map(|time| time.0);
    let hand_over = annotation(&lease.metadata, ANNOTATION_HAND_OVER).and_then(|text| serde_json::from_str(text).ok());
    Some((cluster, name, LeaseFacts { meta: child(&lease.metadata), register, since, hand_over }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::spec::Durability;

    #[test]
    fn a_renewal_is_no_news_and_a_hand_over_is() {
        let meta = child(&ObjectMeta::default());
        let register = Register::initial(vec!["db-1".into()], Durability::Async);
        let facts = |register: &Register| LeaseFacts {
            meta: meta.clone(),
            register: Known::Present(register.clone()),
            since: None,
            hand_over: None,
        };
        let renewed = Register { end: Lsn(7), ..register.clone() };
        assert!(!facts(&register).differs(&facts(&renewed)));
        assert!(facts(&register).differs(&facts(&Register { term: 1, ..renewed })));
    }
}
