//! What this instance tells: its report, its phase, and whether it serves its role or why not.

use std::time::Duration;

use super::history::history_of;
use super::process::boottime;
use super::report::Numbers;
use super::run::{Agent, show};
use crate::api::agent::{Phase, Report};
use crate::core::election::planned::waits_for_smaller;
use crate::core::election::{Data, EngineState, Identity, Job, Tenure};
use crate::engine::postgres::sync_names;

/// A replica stays ready this long without a stream: its primary may be restarting.
const GAP: Duration = Duration::from_secs(10);

/// The report before anything is known.
pub(super) fn first_report(me: &Identity) -> Report {
    Report { message: Some("the agent begins".into()), ..Report::new(&me.instance, &me.pod_uid) }
}

impl Agent {
    /// Tells everybody what is so now.
    pub(super) fn publish(&mut self) {
        let now = boottime();
        let mut report = first_report(&self.me);
        let (timeline, lsn) = self.position();
        let seen = self.observation.as_ref();
        (report.timeline, report.lsn) = (timeline, lsn);
        report.replayed = seen.and_then(|seen| seen.status.replayed).filter(|_| self.engine != EngineState::Primary);
        report.streaming = seen.is_some_and(|seen| seen.status.streaming_from.is_some());
        report.phase = self.phase();
        report.member.clone_from(&self.state.member);
        report.system_id = self.data.system_id().map(ToOwned::to_owned);
        report.empty = self.data == Data::Empty;
        report.term = match (&self.tenure, &self.engine) {
            (Some(tenure), _) => tenure.term,
            (None, EngineState::Standby { source: Some(source), .. }) => source.term,
            _ => 0,
        };
        report.register = self.register().and_then(|register| serde_json::to_string(register).ok());
        report.config_generation = self.duties.loaded;
        report.pending_restart.clone_from(&self.duties.pending);
        report.restart_in_place = self.engine == EngineState::Primary
            && self.config.as_ref().zip(self.critical).is_some_and(|(config, critical)| {
                waits_for_smaller(&self.duties.pending, critical, &config.parameters)
            });
        report.restarted_for.clone_from(&self.state.restarted_for);
        (report.disk, report.wal_disk) = (self.rooms.disk, self.rooms.wal_disk);
        (report.full, report.roomy) = (self.rooms.full, self.rooms.roomy);
        report.rejoined.clone_from(&self.state.rejoined);
        report.marker = self.state.marker;
        report.draining = self.stopping.is_some();
        report.election = self.election_report();
        if let Some(tenure) = &self.tenure {
            // Its own renewals would have kept it no longer.
            let renewed_until =
                self.terms.as_ref().map(|terms| Tenure { held_until: None, ..tenure.clone() }.deadline(&terms.bounds));
            report.held =
                renewed_until.is_some_and(|until| now >= until) && tenure.held_until.is_some_and(|until| now < until);
            report.lease_age_seconds = Some(now.saturating_sub(tenure.renewed).as_secs_f64());
        }
        if let (EngineState::Primary, Data::Present(member)) = (&self.engine, &self.data) {
            let parents = history_of(&self.place.layout.pgdata(), member.timeline);
            report.history = parents.into_iter().map(|(id, left)| (id, Some(left))).collect();
            report.history.push((member.timeline, None));
        }
        if let (EngineState::Primary, Some(seen)) = (&self.engine, seen) {
            report.replicas = self.members.replicas(&seen.walsenders);
        }
        report.rules_confirmed = self.tenure.is_some()
            && self
                .register()
                .is_some_and(|register| register.rules.len() == 1 && self.duties.confirmed.as_ref() == register.rule());
        let ready = self.serves();
        if self.tenure.is_some() && (ready.is_err() || self.engine != EngineState::Primary) {
            self.duties.unavailable += now.saturating_sub(self.duties.looked_at);
        }
        self.duties.looked_at = now;
        report.unavailable_seconds = self.duties.unavailable.as_secs_f64();
        report.clones = self.duties.clones;
        report.store = self.store_report();
        report.ready = ready.is_ok();
        report.message =
            self.trouble.clone().or_else(|| ready.err()).filter(|_| !report.ready || self.trouble.is_some());
        let follows = match &self.engine {
            EngineState::Primary => report.rules_confirmed,
            EngineState::Standby { .. } => report.streaming && report.timeline == self.register().map(|r| r.timeline),
            EngineState::Stopped | EngineState::Busy(_) => true,
        };
        // Nothing hastens room on a volume.
        let eager = !report.ready && report.full.is_none() || !follows;
        self.eager.send_if_modified(|present| std::mem::replace(present, eager) != eager);
        let numbers = seen.map(|seen| Numbers {
            connections: seen.status.connections,
            max_connections: seen.status.max_connections,
            commits: seen.status.commits,
            rollbacks: seen.status.rollbacks,
            blocks_hit: seen.status.blocks_hit,
            blocks_read: seen.status.blocks_read,
            databases: seen.databases.clone(),
            slots: seen.slots.iter().filter_map(|slot| Some((slot.name.clone(), slot.retained?))).collect(),
        });
        self.shared.publish(report, numbers);
    }

    fn phase(&self) -> Phase {
        match &self.engine {
            EngineState::Primary => Phase::Primary,
            EngineState::Standby { .. } => Phase::Replica,
            EngineState::Busy(Job::Bootstrap) => Phase::Bootstrapping,
            EngineState::Busy(Job::Clone) => Phase::Cloning,
            EngineState::Busy(Job::StartPrimary | Job::StartStandby | Job::Promote | Job::Rewind) => Phase::Starting,
            EngineState::Busy(Job::StopPrimary | Job::StopStandby) => Phase::Stopped,
            EngineState::Stopped if self.trouble.is_some() || self.refusal.is_some() => Phase::Failed,
            EngineState::Stopped if self.stopping.is_some() => Phase::Stopped,
            EngineState::Stopped => Phase::Waiting,
        }
    }

    /// Whether this instance serves its role, or why not.
    fn serves(&self) -> Result<(), String> {
        let waits = |fallback: &str| Err(self.waits.clone().unwrap_or_else(|| fallback.to_owned()));
        let seen = self.observation.as_ref();
        match &self.engine {
            EngineState::Primary => {
                if !self.valid() {
                    return waits("it holds no valid Lease");
                }
                let Some(seen) = seen else { return Err("PostgreSQL does not answer".into()) };
                let set = self.sync_setting().map(|sync| sync_names::any(sync.k, &sync.members));
                if seen.status.in_recovery || set.as_deref() != Some(seen.status.sync_names.as_str()) {
                    let rules = self.register().map(|register| show(&register.rules)).unwrap_or_default();
                    return Err(format!("the sync rule is not set yet: {rules}"));
                }
                match self.rooms.full {
                    Some(full) => {
                        Err(format!("its {} is full, so it takes no writes: raise {}", full.name(), full.field()))
                    }
                    None => Ok(()),
                }
            }
            EngineState::Standby { source: Some(source), .. } => {
                let Some(seen) = seen else { return Err("PostgreSQL does not answer yet".into()) };
                let upstream = seen.status.streaming_from.as_deref();
                let recently = self.duties.streamed_at.is_some_and(|at| boottime().saturating_sub(at) < GAP);
                let written_on = self.register().map_or(0, |register| register.timeline);
                if upstream == Some(source.instance.as_str()) && seen.status.timeline == Some(written_on)
                    || upstream.is_none() && recently
                {
                    // It would read old rows, and could not take over.
                    if self.state.marker { Ok(()) } else { Err(format!("catches up with {}", source.instance)) }
                } else {
                    Err(format!("does not stream from {} yet", source.instance))
                }
            }
            EngineState::Standby { source: None, .. } => Err("nobody holds the Lease of the primary".into()),
            EngineState::Busy(Job::Bootstrap) if self.backups.restored().is_some() => {
                Err(self.backups.restored().unwrap_or_default())
            }
            EngineState::Busy(_) => Err(format!("{:?}", self.phase())),
            EngineState::Stopped => match &self.data {
                Data::Unknown => waits("the volume has not been looked at"),
                _ => waits("waits for the Lease of the primary"),
            },
        }
    }
}
