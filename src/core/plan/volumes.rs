//! Volumes: made for every wanted instance, grown, handed over. They are deleted in `pods`, with the instance.

use super::children::lasting;
use super::{Action, Doing, Plan};
use crate::api::spec::State;
use crate::core::build::{Scope, volume};
use crate::core::world::{ChildId, Kind, Known, Volume, VolumeFacts, World};

/// Plans them.
pub fn plan(world: &World, scope: Scope<'_>, plan: &mut Plan) {
    let known = match &world.volumes {
        Known::Present(known) => known,
        Known::Absent | Known::Unknown(_) => {
            plan.does(Doing::Starting, "waits until it is known which volumes there are");
            return;
        }
    };
    let storage = &scope.cluster.storage;
    let mut kinds = vec![(Volume::Data, &storage.size, storage.bytes)];
    if let (Some(size), Some(bytes)) = (&storage.wal_size, storage.wal_bytes) {
        kinds.push((Volume::Wal, size, bytes));
    }
    let lease = ChildId::new(Kind::Lease, scope.cluster.names.lease()).to_string();
    for ordinal in plan.members.wanted.clone() {
        for (kind, size, bytes) in &kinds {
            let id = ChildId::new(Kind::PersistentVolumeClaim, volume::name(scope, ordinal, *kind));
            match known.get(&(ordinal, *kind)) {
                // A volume without a Lease could be taken for one with data: the Lease comes first.
                None if scope.cluster.state == State::Running => {
                    plan.does(Doing::Creating, format!("{id} is made"));
                    let claim = volume::claim(scope, ordinal, *kind);
                    plan.push(id.to_string(), Action::Create(claim), "it is missing").needs.push(lease.clone());
                }
                None => {}
                Some(facts) => existing(facts, id, &size.0, *bytes, scope, plan),
            }
        }
    }
}

fn existing(facts: &VolumeFacts, id: ChildId, size: &str, bytes: u64, scope: Scope<'_>, plan: &mut Plan) {
    if facts.meta.deleting || !lasting(&facts.meta, &id, scope, plan) {
        return;
    }
    if facts.requested < bytes {
        let reason = format!("storage grows to {size}");
        let step = plan.push(format!("growth of {id}"), Action::Grow { id, size: size.to_owned() }, reason);
        step.event = Some("VolumeGrows");
    }
    if let Some(trouble) = &facts.trouble {
        plan.notice(&trouble.reason, trouble.sentence.clone());
    }
}
