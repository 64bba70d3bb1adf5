//! What the agent looks after while PostgreSQL runs: its configuration, and for the holder of the Lease the sync rule, the
//! slots, the passwords and the EndpointSlices. Each is a task with an end; none of them is waited for.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Error;
use super::bootstrap::password_sql;
use super::conf::Aim;
use super::configure::Reread;
use super::endpoints::Routes;
use super::files::{Fingerprint, Secrets};
use super::members::SLOT_GRACE;
use super::postmaster::Files;
use super::process::boottime;
use super::rules::confirm;
use super::run::{Agent, Event};
use super::sql::Slot;
use super::volume::Chosen;
use crate::api::names::SUPERUSER;
use crate::core::election::{Boot, Data, EngineState, Job, Rule, SyncSetting};
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
/// An observation is believed this long.
const FRESH: Duration = Duration::from_secs(4);

/// A thing that is done now and then, one at a time.
#[derive(Debug, Default)]
pub(super) struct Turn {
    busy: bool,
    next: Boot,
}

impl Turn {
    pub(super) fn due(&self) -> bool {
        !self.busy && boottime() >= self.next
    }
    pub(super) fn begin(&mut self) {
        self.busy = true;
    }
    pub(super) fn end(&mut self, pause: Duration) {
        self.busy = false;
        self.next = boottime() + pause;
    }
}

/// What was done and what is under way.
pub(super) struct Duties {
    pub(super) confirmed: Option<Rule>,
    pub(super) confirming: Turn,
    /// The running PostgreSQL came from an empty synchronous_standby_names, and no checkpoint has completed since.
    pub(super) from_empty: bool,
    pub(super) written: Option<Written>,
    pub(super) reloading: Turn,
    pub(super) loaded: i64,
    pub(super) pending: Vec<String>,
    pub(super) peers: BTreeMap<String, Turn>,
    pub(super) slots: Turn,
    pub(super) floor: Turn,
    pub(super) strange_slots: BTreeMap<String, Boot>,
    pub(super) routes: Turn,
    pub(super) tried: Option<Routes>,
    pub(super) routed: Option<Routes>,
    pub(super) passwords: Turn,
    pub(super) passwords_set: Option<Fingerprint>,
    pub(super) secrets_looked: Boot,
    pub(super) server: Fingerprint,
    pub(super) api: Fingerprint,
    pub(super) passwords_mounted: Fingerprint,
    /// Why the configuration cannot be made.
    pub(super) trouble: Option<String>,
    pub(super) observed_at: Boot,
    pub(super) streamed_at: Option<Boot>,
    /// Time in which this instance was to take writes and did not, and when that was looked at last.
    pub(super) unavailable: Duration,
    /// Copies of the primary's data that were begun.
    pub(super) clones: u64,
    pub(super) looked_at: Boot,
}

/// The files that PostgreSQL reads or has to read again.
pub(super) struct Written {
    pub(super) chosen: Chosen,
    pub(super) sync: Option<SyncSetting>,
    pub(super) files: Files,
    /// Whether PostgreSQL has to be told.
    pub(super) told: bool,
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
            tried: None,
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
            clones: 0,
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
        (self.confirmed, self.tried, self.routed) = (None, None, None);
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

pub(super) fn sync_of(aim: &Aim) -> Option<SyncSetting> {
    match aim {
        Aim::Primary(sync) | Aim::Promotion(sync) => Some(sync.clone()),
        Aim::Standby { .. } => None,
    }
}

impl Agent {
    pub(super) fn do_duties(&mut self) {
        self.look_at_secrets();
        self.look_at_floor();
        self.configure();
        self.look_after_backups();
        if self.tenure.is_none() {
            return;
        }
        if self.engine == EngineState::Busy(Job::Promote) {
            // It takes a moment until this arrives at all nodes, and the promotion is done by then.
            self.route();
        }
        if self.engine != EngineState::Primary {
            return;
        }
        self.ask_peers();
        self.prove_rule();
        self.set_passwords();
        self.look_after_slots();
        self.route();
        if self.duties.routed.is_some() {
            self.complete_hand_over();
        }
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
        self.spans.proving = boottime();
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
                    session.create_slot(&name).await?;
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
        if self.duties.routes.busy {
            return;
        }
        let Some(tenure) = &self.tenure else { return };
        let routes = Routes {
            term: tenure.term,
            primary: vec![(self.me.instance.clone(), self.address)],
            replicas: self.members.serving(),
            gathers: self.members.gathers(boottime()),
        };
        // What was tried already waits, also when it failed; a change does not.
        if self.duties.tried.as_ref() == Some(&routes) && !self.duties.routes.due() {
            return;
        }
        self.duties.tried = Some(routes.clone());
        self.duties.routes.begin();
        self.spans.publishing = boottime();
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
                self.heard_of_backup(&instance, heard.as_ref().and_then(|heard| heard.report.store.as_ref()));
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
                        if let Some(term) =
                            self.handed_over().filter(|term| self.spans.committed != *term && rule.k > 0)
                        {
                            self.spans.committed = term;
                            self.tell_step("first commit", term, self.spans.proving, Ok(rule.to_string()));
                        }
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
                    if let Some(term) = self.handed_over().filter(|_| self.duties.routed.is_none()) {
                        self.tell_step("publish", term, self.spans.publishing, Ok(String::new()));
                    }
                    self.duties.routed = Some(routes);
                    self.duties.routes.end(ROUTES_EVERY);
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
}
