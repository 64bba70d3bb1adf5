//! The proof of backups: a scratch Pod is made when a schedule says so, its result is written down, and then it goes.

use jiff::Timestamp;

use super::backup::due;
use super::{Action, Plan};
use crate::api::spec::State;
use crate::api::status::BackupStatus;
use crate::api::verify::VerifyResult;
use crate::core::backup::follow::catalog;
use crate::core::build::{Scope, verify};
use crate::core::world::{ChildId, Kind, Known, VerifyFacts, World};

/// Plans it.
pub fn plan(world: &World, scope: Scope<'_>, plan: &mut Plan) {
    let backup = &scope.cluster.backup;
    let told = world.object.status.as_ref().and_then(|status| status.backup.as_ref());
    let announced = told.and_then(|told| told.next_verification.as_deref()?.parse::<Timestamp>().ok());
    let wanted = backup.verify.as_ref().zip(backup.destination.as_ref());
    let wanted = wanted.filter(|_| !backup.suspend && scope.cluster.state == State::Running);
    match &world.verify {
        Known::Unknown(_) => plan.backups.next_verification = announced.filter(|_| wanted.is_some()),
        Known::Present(pod) => {
            let schedule = wanted.and_then(|(verify, _)| verify.schedule.as_ref().ok());
            plan.backups.next_verification = schedule.and_then(|schedule| schedule.next(world.now));
            let recorded = told.and_then(|told| told.verification_pod.as_ref()) == Some(&pod.meta.uid);
            let ended = result(pod, world.now).is_some();
            if pod.meta.deleting || !super::children::may_touch_pod(&pod.meta, scope) || (wanted.is_some() && !recorded)
            {
                // The status has the result first, and the Pod goes at the next look.
                plan.backups.begins |= ended && !recorded;
                return;
            }
            let id = ChildId::new(Kind::Pod, scope.cluster.names.verify_pod());
            let action =
                Action::Delete { id: id.clone(), uid: pod.meta.uid.clone(), version: pod.meta.version.clone() };
            let reason = if recorded { "its result is written down" } else { "no proof is wanted any more" };
            plan.push(format!("deletion of {id}"), action, reason);
        }
        Known::Absent => {
            let Some((verify, destination)) = wanted else { return };
            let (run, next) = due(Some(&verify.schedule), announced, world.now);
            plan.backups.next_verification = next;
            let Some(run) = run else { return };
            // Announced until it is made; without a backup there is nothing to prove yet.
            plan.backups.next_verification = Some(run);
            if catalog(world, plan.members.primary).is_none_or(|catalog| catalog.backups.is_empty()) {
                return;
            }
            let child = verify::pod(scope, destination, verify.query.as_deref(), &world.agent_image);
            let reason = format!("backup.verify.schedule has a run at {run}");
            plan.push(child.id.to_string(), Action::Create(child), reason).event = Some("VerificationStarted");
            plan.backups.begins = true;
        }
    }
}

/// How it ended; None: it has not.
pub fn result(pod: &VerifyFacts, now: Timestamp) -> Option<Result<VerifyResult, String>> {
    if let Some(ended) = &pod.ended {
        return Some(ended.clone());
    }
    let age = pod.meta.created.map_or(0, |created| now.as_second().saturating_sub(created.as_second()));
    (age > verify::LONGEST).then(|| {
        let why = pod.trouble.as_ref().map_or("it did not end", |trouble| trouble.sentence.as_str());
        Err(format!("it was not done within {} h: {why}", verify::LONGEST / 3600))
    })
}

/// What the status says of proofs: what it said, and what is new.
pub fn record(world: &World, plan: &Plan, before: BackupStatus, after: BackupStatus) -> BackupStatus {
    let next_verification = plan.backups.next_verification.map(crate::core::backup::follow::second);
    let wanted = plan.accepted.as_ref().is_some_and(|accepted| accepted.cluster.backup.verify.is_some());
    let known = BackupStatus {
        next_verification,
        last_verified: before.last_verified,
        verification_error: before.verification_error.filter(|_| wanted),
        verification_pod: before.verification_pod,
        ..after
    };
    let Some(pod) = world.verify.present().filter(|pod| known.verification_pod.as_ref() != Some(&pod.meta.uid)) else {
        return known;
    };
    let verification_pod = Some(pod.meta.uid.clone());
    let at = crate::core::backup::follow::second(world.now);
    match result(pod, world.now) {
        None => known,
        Some(Ok(VerifyResult { ok: true, backup_id, message, .. })) => BackupStatus {
            last_verified: Some(crate::api::status::VerifiedStatus {
                backup_id: backup_id.unwrap_or_default(),
                at,
                message,
            }),
            verification_error: None,
            verification_pod,
            ..known
        },
        Some(Ok(VerifyResult { backup_id, message, .. })) => {
            let of = backup_id.map_or_else(String::new, |id| format!("{id}: "));
            BackupStatus { verification_error: Some(format!("{of}{message}")), verification_pod, ..known }
        }
        Some(Err(why)) => BackupStatus { verification_error: Some(why), verification_pod, ..known },
    }
}
