//! Each instance, as its Pod and its agent say.

use std::collections::BTreeSet;

use crate::api::agent::{Lsn, Phase, Report};
use crate::api::status::{InstanceStatus, RejoinedStatus};
use crate::core::plan::Plan;
use crate::core::world::{Known, World};

/// Every Pod as an instance, and every one that should run, has served before and has no Pod now.
pub(super) fn instances(world: &World, plan: &Plan) -> Vec<InstanceStatus> {
    let before = world.object.status.as_ref().map(|status| status.instances.clone()).unwrap_or_default();
    let Some(pods) = world.pods.present() else { return before };
    let end = world.reports.values().filter_map(Known::present).find(|r| r.phase == Phase::Primary).and_then(|r| r.lsn);
    let absent = plan.members.run.iter().filter(|ordinal| !pods.contains_key(ordinal));
    let ordinals: BTreeSet<u8> = pods.keys().chain(absent).copied().collect();
    let one = |ordinal: u8| {
        let name = world.object.names.instance(ordinal);
        let known = before.iter().find(|instance| instance.name == name);
        let joined = known.is_some_and(|known| known.joined);
        let rejoined = |report| rejoined(report).or_else(|| known.and_then(|known| known.rejoined.clone()));
        let Some(pod) = pods.get(&ordinal) else {
            let gone = InstanceStatus { name, role: "missing".into(), joined, ..InstanceStatus::default() };
            return joined.then(|| InstanceStatus { rejoined: rejoined(None), ..gone });
        };
        let report = world.reports.get(&ordinal).and_then(Known::present);
        let message = match (&pod.trouble, report) {
            (Some(trouble), _) => Some(trouble.sentence.clone()),
            (None, Some(report)) if !pod.ready => report.message.clone(),
            _ => None,
        };
        let ready = pod.ready && !pod.meta.deleting;
        Some(InstanceStatus {
            name,
            role: role(report, pod.meta.deleting).to_owned(),
            ready,
            joined: joined || ready,
            timeline: report.and_then(|r| r.timeline).map(i64::from),
            lsn: report.and_then(|r| r.lsn).map(|lsn| lsn.to_string()),
            lag_bytes: lag(report, end),
            node: pod.node.clone(),
            rejoined: rejoined(report),
            message,
        })
    };
    ordinals.into_iter().filter_map(one).collect()
}

fn rejoined(report: Option<&Report>) -> Option<RejoinedStatus> {
    let rejoined = report?.rejoined.as_ref()?;
    Some(RejoinedStatus {
        how: format!("{:?}", rejoined.how),
        at: rejoined.at.clone(),
        reason: rejoined.reason.clone(),
    })
}

fn lag(report: Option<&Report>, end: Option<Lsn>) -> Option<i64> {
    let (report, end) = (report?, end?);
    if report.phase != Phase::Replica {
        return None;
    }
    i64::try_from(end.0.saturating_sub(report.replayed.or(report.lsn)?.0)).ok()
}

fn role(report: Option<&Report>, deleting: bool) -> &'static str {
    if deleting {
        return "stopping";
    }
    match report.map(|report| report.phase) {
        None => "unknown",
        Some(Phase::Primary) => "primary",
        Some(Phase::Replica) => "replica",
        Some(Phase::Waiting) => "waiting",
        Some(Phase::Bootstrapping) => "bootstrapping",
        Some(Phase::Cloning) => "cloning",
        Some(Phase::Starting) => "starting",
        Some(Phase::Stopped) => "stopped",
        Some(Phase::Failed) => "failed",
    }
}
