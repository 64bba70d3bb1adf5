//! The register: all that decides who may acknowledge a write, in one Lease.
//!
//! The Lease's own fields are for people and for the holder's name; the rest is JSON in one annotation, so that a single
//! conditional replace changes everything together.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::{Deserialize, Serialize};

use super::mutation::{Mutation, active};
use super::rules::Rule;
use crate::api::agent::Lsn;
use crate::api::config::LeaseBounds;
use crate::api::names::ANNOTATION_REGISTER;
use crate::api::spec::Durability;

/// The content of the Lease `<name>-primary`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Register {
    /// Who took it last: `<pod>/<pod uid>/<start nonce>`. Empty before the first take. It stays after a release, because
    /// the holder proof on the data is compared with it.
    #[serde(default)]
    pub holder: String,
    /// The proof by which the holder took it in place. Until the holder has written its own proof beside the data (and so
    /// before it can have written anything else), that data still shows this one.
    #[serde(default)]
    pub inherits: Option<String>,
    /// Id of the data directory that took it last. It holds everything, also where the taker died before it could write its
    /// proof: then it cannot have written anything else either, and nobody but itself may be electable (seen with Async,
    /// where the taker is no member of the rule that it added).
    #[serde(default)]
    pub member: Option<String>,
    /// What a clean release left behind; while it is set, nobody holds the Lease.
    #[serde(default)]
    pub release: Option<Release>,
    /// Address of the holder's Pod.
    #[serde(default)]
    pub address: String,
    /// One higher at each take.
    #[serde(default)]
    pub term: i64,
    /// Timeline on which the present holder writes, from the moment of its promotion.
    #[serde(default)]
    pub timeline: u32,
    /// The last timeline under whose rule a commit was confirmed; every copy that may be elected has it in its history.
    #[serde(default)]
    pub established: u32,
    /// The holder's position at its last renewal: what `failover.maxLagBytes` is measured from.
    #[serde(default)]
    pub end: Lsn,
    /// Container id of the holder, once its Pod's status shows it. A kubelet's report that exactly this one has terminated
    /// proves the holder dead.
    #[serde(default)]
    pub container_id: Option<String>,
    /// Highest timeline id ever reserved; an id is never used twice.
    #[serde(default)]
    pub reserved: u32,
    /// System identifier of the data; None until the first data directory is published.
    #[serde(default)]
    pub system_id: Option<String>,
    /// Bounds by which the holder keeps its validity. Everybody judges it by these, and not by what a configuration says
    /// meanwhile: the two are not changed at one moment.
    #[serde(default)]
    pub bounds: LeaseBounds,
    /// Names of all wanted instances.
    #[serde(default)]
    pub instances: Vec<String>,
    /// Durability in force.
    pub durability: Durability,
    /// The sync rules. Every election must satisfy each; the last is the present one. Empty before the first take.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Member ids given to instances before their first clone, so that the first rule can name them: instance to id.
    /// An entry goes when its member has joined.
    #[serde(default)]
    pub planned: BTreeMap<String, String>,
}

/// What a clean release left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Timeline at the end; 0 when there never was a holder.
    pub timeline: u32,
    /// End of the WAL after the clean shutdown; None when it was not clean (PostgreSQL died).
    #[serde(default)]
    pub lsn: Option<Lsn>,
    /// Who should be next, among equals.
    #[serde(default)]
    pub wish: Option<String>,
}

/// A Lease that is no register.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRegister {
    /// The annotation is gone.
    #[error(
        "the Lease has no annotation {ANNOTATION_REGISTER}: somebody replaced it; delete the Lease, and the operator makes it anew"
    )]
    Missing,
    /// The annotation does not parse.
    #[error(
        "the Lease's annotation {ANNOTATION_REGISTER} cannot be read ({0}): is an older program running beside a newer one?"
    )]
    Broken(String),
    /// Holder in the Lease and in the annotation differ: somebody wrote one without the other.
    #[error("the Lease names the holder {0:?}, its annotation {1:?}: somebody edited one of them by hand")]
    Torn(String, String),
}

impl Register {
    /// The register of a new cluster: released, never held.
    pub fn initial(instances: Vec<String>, durability: Durability) -> Self {
        Self {
            holder: String::new(),
            inherits: None,
            member: None,
            release: Some(Release { timeline: 0, lsn: None, wish: None }),
            address: String::new(),
            term: 0,
            timeline: 0,
            established: 0,
            end: Lsn(0),
            container_id: None,
            reserved: 0,
            system_id: None,
            bounds: LeaseBounds::default(),
            instances,
            durability,
            rules: Vec::new(),
            planned: BTreeMap::new(),
        }
    }

    /// Whether nobody holds it.
    pub fn released(&self) -> bool {
        self.release.is_some()
    }

    /// Name of the instance that took it last; None before the first take.
    pub fn holder_instance(&self) -> Option<&str> {
        self.holder.split_once('/').map(|(instance, _)| instance)
    }

    /// Whether data with this holder proof is the very data on which the last holder wrote.
    pub fn proven_by(&self, proof: &str) -> bool {
        !proof.is_empty() && (proof == self.holder || Some(proof) == self.inherits.as_deref())
    }

    /// Whether this copy is the very data of the last holder, which holds everything that was acknowledged.
    pub fn whole(&self, member: &str, proof: Option<&str>) -> bool {
        proof.is_some_and(|proof| self.proven_by(proof))
            || proof.is_none() && self.member.as_deref() == Some(member) && !active(Mutation::TakerForgotten)
    }

    /// The rule that commits follow now.
    pub fn rule(&self) -> Option<&Rule> {
        self.rules.last()
    }

    /// Whether commits were acknowledged without waiting for anybody.
    pub fn asynchronous(&self) -> bool {
        self.rules.iter().all(|rule| rule.k == 0)
    }

    /// Every member that some rule names.
    pub fn ruled_members(&self) -> BTreeSet<&str> {
        self.rules.iter().flat_map(|rule| rule.members.iter().map(String::as_str)).collect()
    }

    /// Reads the register from its Lease.
    pub fn from_lease(lease: &Lease) -> Result<Self, InvalidRegister> {
        let text = lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(ANNOTATION_REGISTER))
            .ok_or(InvalidRegister::Missing)?;
        let register: Self = serde_json::from_str(text).map_err(|error| InvalidRegister::Broken(error.to_string()))?;
        let named = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
        if named != register.named_holder() {
            return Err(InvalidRegister::Torn(named, register.holder));
        }
        Ok(register)
    }

    /// Writes the register into a Lease that was read; its metadata (uid and resourceVersion above all) stay, which
    /// makes the replace conditional. `now` is for people only: nobody decides by it.
    pub fn into_lease(self, mut lease: Lease, duration_seconds: u32, now: MicroTime) -> Lease {
        let spec = lease.spec.take().unwrap_or_default();
        let taken = spec.lease_transitions.map(i64::from) != Some(self.term);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.named_holder().to_owned()),
            lease_duration_seconds: i32::try_from(duration_seconds).ok(),
            acquire_time: if taken { Some(now.clone()) } else { spec.acquire_time },
            renew_time: Some(now),
            lease_transitions: i32::try_from(self.term).ok(),
            preferred_holder: spec.preferred_holder,
            strategy: spec.strategy,
        });
        let text = serde_json::to_string(&self).unwrap_or_default();
        lease.metadata.annotations.get_or_insert_default().insert(ANNOTATION_REGISTER.to_owned(), text);
        lease
    }

    /// What `holderIdentity` says: nothing while released.
    fn named_holder(&self) -> &str {
        if self.released() { "" } else { &self.holder }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Register {
        let mut register = Register::initial(vec!["db-1".into(), "db-2".into()], Durability::Quorum);
        register.holder = "db-1/uid/nonce".into();
        register.release = None;
        register.term = 3;
        register.rules = vec![Rule::new(["a", "b"], 1)];
        register
    }

    #[test]
    fn a_register_reads_back_as_it_was_written() {
        for register in [held(), Register::initial(vec!["db-1".into()], Durability::Async)] {
            let lease = register.clone().into_lease(Lease::default(), 15, MicroTime(jiff::Timestamp::UNIX_EPOCH));
            assert_eq!(Register::from_lease(&lease), Ok(register));
        }
    }

    #[test]
    fn a_lease_edited_by_hand_is_refused() {
        let mut lease = held().into_lease(Lease::default(), 15, MicroTime(jiff::Timestamp::UNIX_EPOCH));
        lease.spec.as_mut().unwrap().holder_identity = Some("me".into());
        assert!(matches!(Register::from_lease(&lease), Err(InvalidRegister::Torn(..))));
        assert_eq!(Register::from_lease(&Lease::default()), Err(InvalidRegister::Missing));
    }

    #[test]
    fn the_acquire_time_moves_only_with_the_term() {
        let time = |seconds| MicroTime(jiff::Timestamp::from_second(seconds).unwrap());
        let first = held().into_lease(Lease::default(), 15, time(1));
        let renewed = held().into_lease(first, 15, time(2));
        let spec = renewed.spec.clone().unwrap();
        assert_eq!((spec.acquire_time, spec.renew_time), (Some(time(1)), Some(time(2))));
        let mut next = held();
        next.term += 1;
        assert_eq!(next.into_lease(renewed, 15, time(3)).spec.unwrap().acquire_time, Some(time(3)));
    }
}
