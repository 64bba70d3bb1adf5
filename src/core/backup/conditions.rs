//! The conditions of a HelloBackup, for tools that know no phases (kstatus: Helm, Flux; `kubectl wait`).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::backup::{BackupPhase, HelloBackupStatus};

/// The status with its conditions. Of a backup that runs, what changes all the time stands elsewhere.
pub fn with_conditions(status: HelloBackupStatus, generation: i64, now: Timestamp) -> HelloBackupStatus {
    let told = |otherwise: &str| status.message.clone().unwrap_or_else(|| otherwise.to_owned());
    let (ready, more, reason, sentence) = match status.phase {
        BackupPhase::Pending => (false, Some("Reconciling"), "Pending", told("it waits for its turn")),
        BackupPhase::Running => (false, Some("Reconciling"), "Running", told("it is being taken")),
        BackupPhase::Completed => (true, None, "Completed", "it can be restored".to_owned()),
        BackupPhase::Failed => (false, Some("Stalled"), "Failed", told("nothing of it counts as a backup")),
    };
    let condition = |kind: &str, holds: bool| {
        let value = if holds { "True" } else { "False" };
        let before = status.conditions.iter().find(|before| before.type_ == kind && before.status == value);
        Condition {
            type_: kind.to_owned(),
            status: value.to_owned(),
            reason: reason.to_owned(),
            message: sentence.clone(),
            observed_generation: Some(generation),
            last_transition_time: before.map_or(Time(now), |before| before.last_transition_time.clone()),
        }
    };
    let conditions = [condition("Ready", ready)].into_iter().chain(more.map(|kind| condition(kind, true))).collect();
    HelloBackupStatus { observed_generation: Some(generation), conditions, ..status }
}
