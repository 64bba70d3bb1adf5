//! What the agent looks after while PostgreSQL runs: its configuration, and for the holder of the Lease the sync rule, the
//! slots, the passwords and the EndpointSlices. Each is a task with an end; none of them is waited for.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Error;
use super::bootstrap::{control, password_sql};
use super::conf::Aim;
use super::endpoints::Routes;
use super::files::{Fingerprint, Secrets};
use super::history::history_of;
use super::members::SLOT_GRACE;
use super::postmaster::{Files, Postmaster};
use super::process::boottime;
use super::report::Numbers;
use super::rules::confirm;
use super::run::{Agent, Event, show};
use super::sql::{Slot, Socket};
use super::volume::Chosen;
use crate::api::agent::{Phase, Report};
use crate::api::names::SUPERUSER;
use crate::core::election::{Boot, Data, EngineState, Identity, Job, Rule, SyncSetting};
use crate::engine::postgres::{slots, sync_names};

/// How often things are looked at again although nothing seems to have changed.
const SECRETS_EVERY: Duration = Duration::from_secs(2);
const PEERS_EVERY: Duration = Duration::from_secs(1);
const PEERS_EAGER: Duration = Duration::from_millis(100);
const SLOTS_EVERY: Duration = Duration::from_secs(5);
const FLOOR_EVERY: Duration = Duration::from_secs(15);
const ROUTES_EVERY: Duration = Duration::from_secs(5);
/// A duty that failed waits this long.
const RETRY: Duration = Duration::from_secs(1);
/// A replica stays ready this long without a stream: its primary may be restarting.
const GAP: Duration = Duration::from_secs(10);
/// An observation is believed this long.
const FRESH: Duration = Duration::from_secs(4);
const RELOAD: Duration = Duration::from_secs(5);

/// A thing that is done now and then, one at a time.
#[derive(Debug, Default)]
struct Turn {
    busy: bool,
    next: Boot,
}

impl Turn {
    fn due(&self) -> bool {
        !self.busy && boottime() >= self.next
    }
    fn begin(&mut self) {
        self.busy = true;
    }
    fn end(&mut self, pause: Duration) {
        self.busy = false;
        self.next = boottime() + pause;
    }
}

/// What was done and what is under way.
pub(super) struct Duties {
    confirmed: Option<Rule>,
    confirming: Turn,
    /// The running PostgreSQL came from an empty synchronous_standby_names, and no checkpoint has completed since.
    from_empty: bool,
    written: Option<Written>,
    reloading: Turn,
    loaded: i64,
    pending: Vec<String>,
    peers: BTreeMap<String, Turn>,
    slots: Turn,
    floor: Turn,
    strange_slots: BTreeMap<String, Boot>,
    routes: Turn,
    routed: Option<Routes>,
    passwords: Turn,
    passwords_set: Option<Fingerprint>,
    secrets_looked: Boot,
    server: Fingerprint,
    api: Fingerprint,
    passwords_mounted: Fingerprint,
    /// Why the configuration cannot be made.
    trouble: Option<String>,
    observed_at: Boot,
    streamed_at: Option<Boot>,
    /// Time in which this instance was to take writes and did not, and when that was looked at last.
    unavailable: Duration,
    looked_at: Boot,
}

/// The files that PostgreSQL reads or has to read again.
struct Written {
    chosen: Chosen,
    sync: Option<SyncSetting>,
    files: Files,
    /// Whether PostgreSQL has to be told.
    told: bool,
}

impl Duties {
    pub(super) fn new(secrets: &Secrets) -> Self {
        Self {
            confirmed: None,
            confirming: Turn::default(),
            from_empty: false,
            written: None,
            reloading: Turn::default(),
            loaded: 0,
            pending: Vec::new(),
            peers: BTreeMap::new(),
            slots: Turn::default(),
            floor: Turn::default(),
            strange_slots: BTreeMap::new(),
            routes: Turn::default(),
            routed: None,
            passwords: Turn::default(),
            passwords_set: None,
            secrets_looked: boottime(),
            server: secrets.fingerprint(&["server", "replication"]),
            api: secrets.fingerprint(&["replication"]),
            passwords_mounted: secrets.fingerprint(&["app", "superuser"]),
            trouble: None,
            observed_at: Duration::ZERO,
            streamed_at: None,
            unavailable: Duration::ZERO,
            looked_at: boottime(),
        }
    }

    /// The rule that is proven to be in force.
    pub(super) fn confirmed(&self) -> Option<&Rule> {
        self.confirmed.as_ref()
    }

    /// Whether settings wait for a restart.
    pub(super) fn restart_is_due(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A new term: nothing that was proven or written in an older one counts.
    pub(super) fn begin_term(&mut self) {
        (self.confirmed, self.routed) = (None, None);
    }

    /// PostgreSQL is about to start with these files.
    pub(super) fn wrote(&mut self, chosen: Chosen, aim: &Aim, files: Files) {
        let sync = sync_of(aim);
        (self.confirmed, self.passwords_set, self.from_empty) = (None, None, false);
        self.pending.clear();
        // After a start, no setting waits for a restart.
        self.loaded = chosen.generation;
        self.written = Some(Written { chosen, sync, files, told: true });
    }

    /// The settings with which PostgreSQL was started.
    pub(super) fn started_with(&self) -> Option<Chosen> {
        self.written.as_ref().map(|written| written.chosen.clone())
    }
}

fn sync_of(aim: &Aim) -> Option<SyncSetting> {
    match aim {
        Aim::Primary(sync) | Aim::Promotion(sync) => Some(sync.clone()),
        Aim::Standby { .. } => None,
    }
}

/// The report before anything is known.
pub(super) fn first_report(me: &Identity) -> Report {
    Report {
        instance: me.instance.clone(),
        pod_uid: me.pod_uid.clone(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        phase: Phase::Waiting,
        message: Some("the agent begins".into()),
        member: None,
        system_id: None,
        term: 0,
        register: None,
        timeline: None,
        history: Vec::new(),
        lsn: None,
        replayed: None,
        streaming: false,
        ready: false,
        config_generation: 0,
        pending_restart: Vec::new(),
        restart_in_place: false,
        restarted_for: None,
        disk: None,
        replicas: Vec::new(),
        rules_confirmed: false,
        marker: false,
        draining: false,
        election: None,
        held: false,
        lease_age_seconds: None,
        rejoined: None,
        unavailable_seconds: 0.0,
    }
}

impl Agent {
    pub(super) fn do_duties(&mut self) {
        self.look_at_secrets();
        self.look_at_floor();
        self.configure();
        if self.engine != EngineState::Primary || self.tenure.is_none() {
            return;
        }
        self.ask_peers();
        self.prove_rule();
        self.set_passwords();
        self.look_after_slots();
        self.route();
    }

    fn look_at_secrets(&mut self) {
        if boottime().saturating_sub(self.duties.secrets_looked) < SECRETS_EVERY {
            return;
        }
        self.duties.secrets_looked = boottime();
        let secrets = &self.place.secrets;
        let api = secrets.fingerprint(&["replication"]);
        if api != self.duties.api {
            self.duties.api = api;
            match self.tls.reload(secrets) {
                Ok(()) => tracing::info!("took over new certificates for the agents' API"),
                Err(error) => tracing::warn!(%error, "the new certificates are broken, the old ones stay"),
            }
        }
        let server = secrets.fingerprint(&["server", "replication"]);
        if server != self.duties.server {
            self.duties.server = server;
            if let Some(written) = &mut self.duties.written {
                tracing::info!("PostgreSQL reads new certificates");
                written.told = false;
            }
        }
        self.duties.passwords_mounted = secrets.fingerprint(&["app", "superuser"]);
    }

    /// Makes the running PostgreSQL follow the configuration, the rule and the source that hold now.
    pub(super) fn configure(&mut self) {
        let aim = match &self.engine {
            EngineState::Primary => match self.sync_setting() {
                Some(sync) => Aim::Primary(sync),
                None => return,
            },
            EngineState::Standby { source, .. } => self.standby_aim(source.clone()),
            EngineState::Stopped | EngineState::Busy(_) => return,
        };
        let (Some(config), Some(postmaster)) = (&self.config, &self.postmaster) else { return };
        let chosen = self.chosen(config);
        let files = match self.place.files(config, &chosen, &aim) {
            Ok(files) => files,
            Err(error) => {
                self.duties.trouble = Some(error.to_string());
                return;
            }
        };
        let sync = sync_of(&aim);
        match &mut self.duties.written {
            Some(written) if written.files == files => written.chosen = chosen,
            _ => {
                if let Err(error) = files.write(&self.place.layout.pgdata()) {
                    self.duties.trouble = Some(error.to_string());
                    return;
                }
                let before = self.duties.written.as_ref().and_then(|written| written.sync.clone());
                if let (Some(before), Some(after)) = (before, &sync)
                    && before != *after
                {
                    tracing::info!(names = %sync_names::any(after.k, &after.members), "commits wait for");
                    self.duties.from_empty |= before.k == 0 && after.k > 0;
                }
                self.duties.written = Some(Written { chosen, sync, files, told: false });
            }
        }
        self.duties.trouble = None;
        let Some(written) = &mut self.duties.written else { return };
        if written.told && self.duties.loaded == written.chosen.generation || !self.duties.reloading.due() {
            return;
        }
        let reload = !written.told;
        written.told = true;
        let chosen = written.chosen.clone();
        self.duties.reloading.begin();
        let (socket, postmaster, events) = (self.place.socket.clone(), postmaster.clone(), self.events.clone());
        tokio::spawn(async move {
            let outcome = read_again(&socket, &postmaster, reload).await;
            let _ = events.send(Event::Reloaded(chosen, outcome)).await;
        });
    }

    /// A replica keeps what its primary's settings were when it began to follow. When the primary's went down meanwhile, the
    /// control file says so as soon as that is replayed.
    fn look_at_floor(&mut self) {
        if !matches!(self.engine, EngineState::Standby { .. }) || !self.duties.floor.due() {
            return;
        }
        self.duties.floor.begin();
        let (processes, pgdata, events) = (self.processes.clone(), self.place.layout.pgdata(), self.events.clone());
        tokio::spawn(async move {
            let outcome = control(&processes, &pgdata).await.map(|control| control.critical);
            let _ = events.send(Event::Floor(outcome)).await;
        });
    }

    /// Asks each of the others for itself: one that does not answer holds up nobody.
    fn ask_peers(&mut self) {
        let (Some(terms), Some(tenure)) = (&self.terms, &self.tenure) else { return };
        let term = tenure.term;
        self.duties.peers.retain(|instance, _| terms.instances.contains(instance));
        for instance in terms.instances.iter().filter(|instance| **instance != self.me.instance) {
            let turn = self.duties.peers.entry(instance.clone()).or_default();
            if !turn.due() {
                continue;
            }
            turn.begin();
            let (peers, events, instance) = (self.peers.clone(), self.events.clone(), instance.clone());
            tokio::spawn(async move {
                let heard = peers.ask(vec![instance.clone()]).await.pop();
                let _ = events.send(Event::Heard(instance, heard.map(Box::new), term)).await;
            });
        }
    }

    fn prove_rule(&mut self) {
        let Some(rule) = self.register().and_then(|register| register.rule()).cloned() else { return };
        let Some(written) = &self.duties.written else { return };
        let Some(sync) = written.sync.clone() else { return };
        let named = sync.members.iter().filter(|id| rule.members.contains(*id)).count();
        let enough = named >= usize::try_from(rule.k).unwrap_or(usize::MAX) && sync.k == rule.k;
        if self.duties.confirmed.as_ref() == Some(&rule) || !enough || !written.told || !self.duties.confirming.due() {
            return;
        }
        self.duties.confirming.begin();
        let (socket, events, from_empty) = (self.place.socket.clone(), self.events.clone(), self.duties.from_empty);
        let setting = sync_names::any(sync.k, &sync.members);
        tokio::spawn(async move {
            let outcome = confirm(&socket, &rule, &setting, from_empty).await;
            let _ = events.send(Event::Confirmed(rule, setting, outcome)).await;
        });
    }

    fn set_passwords(&mut self) {
        let mounted = self.duties.passwords_mounted;
        if self.duties.passwords_set == Some(mounted) || !self.duties.passwords.due() {
            return;
        }
        let Some(config) = &self.config else { return };
        let owner = config.spec.postgresql.owner.clone();
        let (Ok(app), Ok(superuser)) =
            (self.place.secrets.credentials("app"), self.place.secrets.credentials("superuser"))
        else {
            return;
        };
        self.duties.passwords.begin();
        let (socket, events) = (self.place.socket.clone(), self.events.clone());
        tokio::spawn(async move {
            let work = async {
                let session = socket.open("postgres").await?;
                session.run("the superuser's password", &password_sql(SUPERUSER, &superuser.password)).await?;
                session.run("the owner's password", &password_sql(&owner, &app.password)).await
            };
            let _ = events.send(Event::Passwords(mounted, work.await)).await;
        });
    }

    /// Every member has a slot, and a slot of nobody goes after a while.
    fn look_after_slots(&mut self) {
        let Some(seen) = &self.observation else { return };
        let Some(register) = self.register() else { return };
        if !self.duties.slots.due() {
            return;
        }
        let instances = self.terms.as_ref().map(|terms| terms.instances.clone()).unwrap_or_default();
        let wanted: Vec<String> = self.members.ids(&instances).iter().map(|id| slots::of(id)).collect();
        let missing: Vec<String> =
            wanted.iter().filter(|name| !seen.slots.iter().any(|slot| slot.name == **name)).cloned().collect();
        let mut known: Vec<String> = register.ruled_members().into_iter().map(slots::of).collect();
        known.extend(register.planned.values().map(|id| slots::of(id)));
        known.extend(wanted);
        let strange =
            |slot: &&Slot| slot.name.starts_with(slots::PREFIX) && !slot.active && !known.contains(&slot.name);
        let strange: Vec<String> = seen.slots.iter().filter(strange).map(|slot| slot.name.clone()).collect();
        // The slot of an instance that was removed for good keeps WAL for nobody.
        let instances: Vec<String> = instances.iter().map(|name| slots::of(name) + "_").collect();
        let of_wanted = |slot: &str| instances.iter().any(|instance| slot.starts_with(instance));
        let now = boottime();
        self.duties.strange_slots.retain(|name, _| strange.contains(name));
        for name in strange {
            self.duties.strange_slots.entry(name).or_insert(now);
        }
        let old: Vec<String> = self
            .duties
            .strange_slots
            .iter()
            .filter(|(name, since)| now.saturating_sub(**since) >= SLOT_GRACE || !of_wanted(name))
            .map(|(name, _)| name.clone())
            .collect();
        if missing.is_empty() && old.is_empty() {
            self.duties.slots.end(SLOTS_EVERY);
            return;
        }
        self.duties.slots.begin();
        let (socket, events) = (self.place.socket.clone(), self.events.clone());
        tokio::spawn(async move {
            let work = async {
                let session = socket.open("postgres").await?;
                for name in missing {
                    session
                        .run("a slot", &format!("SELECT pg_create_physical_replication_slot('{name}', true)"))
                        .await?;
                }
                for name in old {
                    tracing::info!(slot = %name, "removes a replication slot that belongs to no member");
                    session.run("the end of a slot", &format!("SELECT pg_drop_replication_slot('{name}')")).await?;
                }
                Ok(())
            };
            let _ = events.send(Event::Slots(work.await)).await;
        });
    }

    fn route(&mut self) {
        if self.observation.is_none() || self.duties.routes.busy {
            return;
        }
        let Some(tenure) = &self.tenure else { return };
        let routes = Routes {
            term: tenure.term,
            primary: vec![(self.me.instance.clone(), self.address)],
            replicas: self.members.serving(),
        };
        let changed = self.duties.routed.as_ref() != Some(&routes);
        // A failed write waits; a change does not.
        if !changed && !self.duties.routes.due() {
            return;
        }
        self.duties.routes.begin();
        let (endpoints, events) = (self.endpoints.clone(), self.events.clone());
        tokio::spawn(async move {
            let outcome = endpoints.write(&routes).await;
            let _ = events.send(Event::Routed(routes, outcome)).await;
        });
    }

    pub(super) fn duty_ended(&mut self, event: Event) {
        let warn = |what: &str, error: &Error| {
            tracing::warn!(%error, category = error.category().as_str(), what, "will be tried again");
        };
        match event {
            Event::Observed(Ok(Some(seen))) => {
                self.duties.observed_at = boottime();
                if seen.status.streaming_from.is_some() {
                    self.duties.streamed_at = Some(boottime());
                }
                let mut consistent = false;
                if let EngineState::Standby { replaying, .. } = &mut self.engine {
                    consistent = true;
                    // What it had is replayed once.
                    *replaying &= seen.status.replaying;
                }
                // What the Lease tells of the end of the WAL, with the next renewal.
                if let (EngineState::Primary, Data::Present(member), Some(end)) =
                    (&self.engine, &mut self.data, seen.status.flushed)
                {
                    member.end = end;
                }
                if consistent
                    && self.state.fresh.is_some()
                    && let Err(error) = self.remember(|state| state.fresh = None)
                {
                    warn("the state on the volume", &error);
                }
                self.members.see(&seen.walsenders, boottime());
                self.observation = Some(*seen);
                if self.failures > 0 && self.postmaster.is_some() {
                    self.succeeded();
                }
            }
            Event::Observed(outcome) => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "PostgreSQL does not answer");
                }
                if boottime().saturating_sub(self.duties.observed_at) >= FRESH {
                    self.observation = None;
                }
            }
            Event::Heard(instance, heard, term) => {
                let complete = heard.is_none()
                    || self
                        .terms
                        .as_ref()
                        .is_some_and(|terms| self.members.complete(&terms.instances, &self.me.instance));
                let pause = if complete { PEERS_EVERY } else { PEERS_EAGER };
                if let Some(turn) = self.duties.peers.get_mut(&instance) {
                    turn.end(pause);
                }
                self.wake_after(pause);
                if self.tenure.as_ref().is_some_and(|tenure| tenure.term == term) {
                    let system_id = self.data.system_id().map(ToOwned::to_owned);
                    let timeline = self.register().map(|register| register.timeline);
                    let heard = heard.map(|heard| *heard).into_iter().collect();
                    self.members.hear(heard, term, timeline, system_id.as_deref(), &[instance]);
                }
            }
            Event::Confirmed(rule, setting, outcome) => {
                let present = self.duties.written.as_ref().and_then(|written| written.sync.as_ref());
                let still = present.is_some_and(|sync| sync_names::any(sync.k, &sync.members) == setting);
                match outcome {
                    Ok(true) if still => {
                        tracing::info!(rule = %rule, "the sync rule is in force");
                        self.duties.from_empty = false;
                        self.duties.confirmed = Some(rule);
                        self.duties.confirming.end(Duration::ZERO);
                    }
                    Ok(_) => self.duties.confirming.end(Duration::from_millis(100)),
                    Err(error) => {
                        warn("the proof of the sync rule", &error);
                        self.duties.confirming.end(RETRY);
                    }
                }
            }
            Event::Reloaded(chosen, Ok(Reread { pending, errors })) => {
                self.duties.reloading.end(Duration::ZERO);
                if !errors.is_empty() {
                    self.reject(&chosen, &errors.join("; "));
                    return;
                }
                if pending != self.duties.pending && !pending.is_empty() {
                    tracing::info!(settings = %pending.join(", "), "these settings wait for a restart");
                }
                self.duties.loaded = chosen.generation;
                // What waits for a restart is proven by that restart only.
                if pending.is_empty()
                    && let Err(error) = self.accept(chosen)
                {
                    warn("the state on the volume", &error);
                }
                self.duties.pending = pending;
            }
            Event::Reloaded(_, Err(error)) => {
                warn("the reload of the configuration", &error);
                self.duties.reloading.end(RETRY);
            }
            Event::Floor(outcome) => {
                self.duties.floor.end(FLOOR_EVERY);
                match outcome {
                    Ok(critical) => self.critical = Some(critical),
                    Err(error) => warn("a look at the control file", &error),
                }
            }
            Event::Slots(outcome) => {
                if let Err(error) = outcome {
                    warn("the replication slots", &error);
                }
                self.duties.slots.end(RETRY);
            }
            Event::Routed(routes, outcome) => match outcome {
                Ok(()) => {
                    self.duties.routed = Some(routes);
                    self.duties.routes.end(ROUTES_EVERY);
                    self.complete_hand_over();
                }
                Err(error) => {
                    warn("the EndpointSlices", &error);
                    self.duties.routes.end(RETRY);
                }
            },
            Event::Passwords(fingerprint, outcome) => match outcome {
                Ok(()) => {
                    tracing::info!("the passwords are those of the Secrets");
                    self.duties.passwords_set = Some(fingerprint);
                    self.duties.passwords.end(Duration::ZERO);
                }
                Err(error) => {
                    warn("the passwords", &error);
                    self.duties.passwords.end(RETRY);
                }
            },
            // The rest is taken in by the loop itself.
            _ => {}
        }
    }

    /// Tells everybody what is so now.
    pub(super) fn publish(&mut self) {
        let mut report = first_report(&self.me);
        let (timeline, lsn) = self.position();
        let seen = self.observation.as_ref();
        (report.timeline, report.lsn) = (timeline, lsn);
        report.replayed = seen.and_then(|seen| seen.status.replayed).filter(|_| self.engine != EngineState::Primary);
        report.streaming = seen.is_some_and(|seen| seen.status.streaming_from.is_some());
        report.phase = self.phase();
        report.member.clone_from(&self.state.member);
        report.system_id = self.data.system_id().map(ToOwned::to_owned);
        report.term = match (&self.tenure, &self.engine) {
            (Some(tenure), _) => tenure.term,
            (None, EngineState::Standby { source: Some(source), .. }) => source.term,
            _ => 0,
        };
        report.register = self.register().and_then(|register| serde_json::to_string(register).ok());
        report.config_generation = self.duties.loaded;
        report.pending_restart.clone_from(&self.duties.pending);
        report.restarted_for.clone_from(&self.state.restarted_for);
        report.disk = self.place.layout.disk().ok();
        report.rejoined.clone_from(&self.state.rejoined);
        report.marker = self.state.marker;
        report.draining = self.stopping.is_some();
        report.election = self.election_report();
        if let Some(tenure) = &self.tenure {
            report.held = tenure.held_until.is_some();
            report.lease_age_seconds = Some(boottime().saturating_sub(tenure.renewed).as_secs_f64());
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
        let now = boottime();
        if self.tenure.is_some() && (ready.is_err() || self.engine != EngineState::Primary) {
            self.duties.unavailable += now.saturating_sub(self.duties.looked_at);
        }
        self.duties.looked_at = now;
        report.unavailable_seconds = self.duties.unavailable.as_secs_f64();
        report.ready = ready.is_ok();
        report.message =
            self.trouble.clone().or_else(|| ready.err()).filter(|_| !report.ready || self.trouble.is_some());
        let follows = match &self.engine {
            EngineState::Primary => report.rules_confirmed,
            EngineState::Standby { .. } => report.streaming && report.timeline == self.register().map(|r| r.timeline),
            EngineState::Stopped | EngineState::Busy(_) => true,
        };
        let eager = !report.ready || !follows;
        self.eager.send_if_modified(|present| std::mem::replace(present, eager) != eager);
        let numbers = seen.map(|seen| Numbers {
            connections: seen.status.connections,
            max_connections: seen.status.max_connections,
            commits: seen.status.commits,
            rollbacks: seen.status.rollbacks,
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
                let valid = self.tenure.as_ref().zip(self.terms.as_ref());
                if !valid.is_some_and(|(tenure, terms)| tenure.valid(boottime(), &terms.bounds)) {
                    return waits("it holds no valid Lease");
                }
                let Some(seen) = seen else { return Err("PostgreSQL does not answer".into()) };
                let set = self.sync_setting().map(|sync| sync_names::any(sync.k, &sync.members));
                if seen.status.in_recovery || set.as_deref() != Some(seen.status.sync_names.as_str()) {
                    let rules = self.register().map(|register| show(&register.rules)).unwrap_or_default();
                    return Err(format!("the sync rule is not set yet: {rules}"));
                }
                Ok(())
            }
            EngineState::Standby { source: Some(source), .. } => {
                let Some(seen) = seen else { return Err("PostgreSQL does not answer yet".into()) };
                let upstream = seen.status.streaming_from.as_deref();
                let recently = self.duties.streamed_at.is_some_and(|at| boottime().saturating_sub(at) < GAP);
                let written_on = self.register().map_or(0, |register| register.timeline);
                if upstream == Some(source.instance.as_str()) && seen.status.timeline == Some(written_on)
                    || upstream.is_none() && recently
                {
                    Ok(())
                } else {
                    Err(format!("does not stream from {} yet", source.instance))
                }
            }
            EngineState::Standby { source: None, .. } => Err("nobody holds the Lease of the primary".into()),
            EngineState::Busy(_) => Err(format!("{:?}", self.phase())),
            EngineState::Stopped => match &self.data {
                Data::Unknown => waits("the volume has not been looked at"),
                _ => waits("waits for the Lease of the primary"),
            },
        }
    }
}

/// What a session sees that was opened after the postmaster had read its files again.
#[derive(Debug)]
pub struct Reread {
    /// Settings that wait for a restart.
    pub pending: Vec<String>,
    /// What PostgreSQL does not accept.
    pub errors: Vec<String>,
}

/// Has PostgreSQL read its files again.
async fn read_again(socket: &Socket, postmaster: &Postmaster, reload: bool) -> Result<Reread, Error> {
    let loaded = async || socket.open("postgres").await?.loaded_at().await;
    if reload {
        let before = match loaded().await {
            Ok(before) => before,
            Err(error) => {
                // It must hear of it even if it does not answer: a replica that waits for its primary, for instance.
                postmaster.reload();
                return Err(error);
            }
        };
        postmaster.reload();
        let end = tokio::time::Instant::now() + RELOAD;
        // With a broken line in it, the postmaster does not take the file over at all; then the errors say why.
        while loaded().await? == before && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let session = socket.open("postgres").await?;
    Ok(Reread { pending: session.pending_restart().await?, errors: session.configuration_errors().await? })
}
