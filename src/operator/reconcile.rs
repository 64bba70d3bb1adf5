//! One reconcile: observe, plan, apply, and the status last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::apply::{Applied, Applier};
use super::backups::Backups;
use super::crd::Degraded;
use super::error::{Error, call};
use super::events::{self, Events, News, Told};
use super::gauges;
use super::mirror::ClusterKey;
use super::object::Entry;
use super::observe::{Observer, blank};
use super::patch::merge_patch;
use super::queue::Queue;
use super::random::jitter;
use super::streams::{Mirrors, hello_operators};
use crate::api::Category;
use crate::api::agent::HandOverReason;
use crate::api::names::{FIELD_MANAGER, GROUP, KIND, VERSION};
use crate::api::status::{HelloOperatorStatus, LastFailover};
use crate::calls::CallError;
use crate::core::plan::backup::orphans;
use crate::core::plan::{Action, DATA_LOSS_ACCEPTED, Plan, plan};
use crate::core::status::{completed, status};
use crate::core::world::{ChildId, Failure, Kind, Known, ObjectFacts, World};
use crate::leader::Gate;
use crate::telemetry::metrics::{OperatorMetrics, Outcome};
use crate::telemetry::traces::{HandOver, HandOvers};

/// Pace of looks at a settled cluster: what no watch tells (agents' reports, the user's own Secrets) is seen by then.
const SETTLED: Duration = Duration::from_secs(30);
/// Pace while something is under way.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// Right after something was written.
const WROTE: Duration = Duration::from_millis(200);
/// Pace while a backup is taken.
const PROGRESS: Duration = Duration::from_secs(5);
/// Longest pause between tries of what fails.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// When the looks at a cluster that does not get ready become rarer.
const PATIENCE: Duration = Duration::from_mins(2);
/// A reconcile that takes longer is given up.
const WHOLE: Duration = Duration::from_secs(60);

/// When backups want the next look.
fn soon(world: &World, plan: &Plan) -> Duration {
    if plan.backups.begins {
        return UNDER_WAY;
    }
    if plan.backups.runs {
        return PROGRESS;
    }
    let due = [plan.backups.next_run, plan.backups.next_verification];
    let left = due.into_iter().flatten().map(|next| next.as_second().saturating_sub(world.now.as_second()));
    // One that has passed waits for something else, which is seen in time.
    let left = left.filter_map(|left| u64::try_from(left).ok()).filter(|left| *left > 0).min();
    left.map_or(Duration::MAX, |left| Duration::from_secs(left.saturating_add(1)))
}

/// What is remembered of a cluster between two looks.
#[derive(Default)]
struct Memory {
    uid: String,
    attempts: u32,
    failures: Vec<Failure>,
    unsettled_since: Option<Instant>,
    /// What was told by an event, where no status can hold it.
    told: Option<HelloOperatorStatus>,
    /// The restart that was told of last: the instance and the command's name.
    restart: Option<(u8, String)>,
}

/// Everything that reconciles share.
pub struct Reconciler {
    /// Its writes pass the gate.
    pub client: Client,
    /// Who acts.
    pub gate: Gate,
    /// What the watches said.
    pub mirrors: Arc<Mirrors>,
    /// What waits.
    pub queue: Arc<Queue>,
    /// Collects the world.
    pub observer: Observer,
    /// Carries plans out.
    pub applier: Applier,
    /// Tells.
    pub events: Arc<Events>,
    /// Counts.
    pub metrics: Arc<OperatorMetrics>,
    /// Records hand-overs as traces.
    pub hand_overs: HandOvers,
    /// Whether a bare CRD stands over ours.
    pub degraded: Degraded,
    /// Reports backups.
    pub backups: Backups,
    memories: Mutex<HashMap<ClusterKey, Memory>>,
}

impl Reconciler {
    /// A reconciler.
    #[expect(clippy::too_many_arguments, reason = "a constructor that names its parts")]
    pub fn new(
        client: Client,
        gate: Gate,
        mirrors: Arc<Mirrors>,
        queue: Arc<Queue>,
        observer: Observer,
        applier: Applier,
        events: Arc<Events>,
        metrics: Arc<OperatorMetrics>,
        hand_overs: HandOvers,
        degraded: Degraded,
        backups: Backups,
    ) -> Self {
        let memories = Mutex::default();
        Self {
            client,
            gate,
            mirrors,
            queue,
            observer,
            applier,
            events,
            metrics,
            hand_overs,
            degraded,
            backups,
            memories,
        }
    }

    fn memories(&self) -> MutexGuard<'_, HashMap<ClusterKey, Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a cluster, and says when to look again.
    #[tracing::instrument(name = "reconcile", skip_all, fields(%key))]
    pub async fn run(&self, key: &ClusterKey) {
        let began = Instant::now();
        let outcome = match tokio::time::timeout(WHOLE, Box::pin(self.look(key))).await {
            Ok(outcome) => outcome,
            Err(_) => Err(CallError::Timeout { what: format!("the look at {key}"), limit: WHOLE }.into()),
        };
        let (kind, again) = match outcome {
            Ok((outcome, again)) => (outcome, again),
            Err(error) => {
                self.metrics.failed(error.category());
                if error.category() == Category::Conflict {
                    tracing::debug!(cluster = %key, %error, "somebody else wrote first");
                } else {
                    tracing::warn!(cluster = %key, %error, "reconcile failed");
                }
                let again = if error.category() == Category::Conflict { WROTE } else { self.backoff(key) };
                (Outcome::Failed, Some(again))
            }
        };
        self.metrics.reconciled(kind, began.elapsed());
        if let Some(again) = again {
            self.queue.add(key.clone(), jitter(again));
        }
    }

    fn backoff(&self, key: &ClusterKey) -> Duration {
        let mut memories = self.memories();
        let memory = memories.entry(key.clone()).or_default();
        memory.attempts = memory.attempts.saturating_add(1);
        self.metrics.set_failing(&key.namespace, &key.name, memory.attempts);
        let factor = 2_u32.saturating_pow(memory.attempts.saturating_sub(1).min(8));
        UNDER_WAY.saturating_mul(factor).min(LONGEST_BACKOFF)
    }

    fn forget(&self, key: &ClusterKey) {
        self.memories().remove(key);
        self.observer.forget(key);
        self.metrics.forget_cluster(&key.namespace, &key.name);
    }

    async fn look(&self, key: &ClusterKey) -> Result<(Outcome, Option<Duration>), Error> {
        let Some(entry) = self.mirrors.objects.get(key, &key.name) else {
            self.forget(key);
            return self.orphans(key).await;
        };
        let degraded = self.degraded.get();
        if entry.paused && !degraded {
            self.greet(key, &entry);
            return self.paused(key, &entry).await;
        }
        let failures = {
            let mut memories = self.memories();
            let memory = memories.entry(key.clone()).or_default();
            if *memory.uid != *entry.uid {
                *memory = Memory { uid: entry.uid.to_string(), ..Memory::default() };
            }
            memory.failures.clone()
        };
        let world =
            Box::pin(self.observer.observe(key, entry.facts(key), (degraded, self.degraded.backups()), failures)).await;
        if world.greeted.as_deref() != Some(&*entry.uid) {
            self.greet(key, &entry);
        }
        let plan = tracing::info_span!("plan").in_scope(|| plan(&world));
        let applied = self.applier.apply(key, &world, &plan).await;
        for (_, error) in &applied.failed {
            self.metrics.failed(error.category());
        }
        let failures = applied.failures(&world);
        for step in &applied.done {
            if let Action::Apply(child) = &step.action
                && let Some(mirror) = self.mirrors.plain(child.id.kind)
            {
                mirror.update(key, &child.id.name, |found| found.owned.settle());
            }
        }
        self.memories().entry(key.clone()).or_default().failures.clone_from(&failures);
        for step in &applied.done {
            if self.applier.end.came() {
                break;
            }
            if let Some(reason) = step.event {
                let note = format!("{}: {}", step.id, step.reason);
                let child = step.child(&world.object.names);
                let (child, occasion) = (child.as_ref(), entry.generation);
                let warning = reason == DATA_LOSS_ACCEPTED;
                let news = News { warning, reason, note: &note, child, occasion };
                self.events.tell(key, &entry.uid, news).await;
            }
        }
        self.tell_restarts(key, &entry, &world, &applied).await;
        let status = status(&world, &plan, &failures);
        self.metrics.set_cluster(&key.namespace, &key.name, gauges::cluster(&world, &plan, &status));
        let told = self.backups.report(key, Some(&entry.uid), &world.backups, &plan.backups.statuses).await;
        let wrote = self.report(key, &entry, &world, &status).await?;
        let wrote = told? || wrote;
        let (outcome, again) = self.verdict(key, &plan, &applied, !failures.is_empty(), wrote);
        Ok((outcome, again.map(|again| again.min(soon(&world, &plan)))))
    }

    /// Backups of a cluster that does not exist.
    async fn orphans(&self, key: &ClusterKey) -> Result<(Outcome, Option<Duration>), Error> {
        let known: Vec<_> = self.mirrors.backups.of(key).into_values().collect();
        if known.is_empty() || self.degraded.backups().is_some() {
            return Ok((Outcome::Settled, None));
        }
        if !self.mirrors.objects.synced() {
            // It may well exist.
            return Ok((Outcome::Settled, Some(UNDER_WAY)));
        }
        let mut world = blank(ObjectFacts::missing(&key.namespace, &key.name), &self.observer.to_agents);
        world.backups = Known::Present(known);
        let wrote = self.backups.report(key, None, &world.backups, &orphans(&world)).await?;
        Ok((if wrote { Outcome::Changed } else { Outcome::Settled }, None))
    }

    /// Tells of each restart once, when its command was taken: the command is repeated until it is carried out.
    async fn tell_restarts(&self, key: &ClusterKey, entry: &Entry, world: &World, applied: &Applied) {
        for (step, error) in &applied.failed {
            let (ordinal, id) = match &step.action {
                Action::Restart { ordinal, command } => (*ordinal, &command.id),
                Action::Switchover { primary, command } => (*primary, &command.id),
                _ => continue,
            };
            let (Error::Pending(_), Some(reason)) = (error, step.event) else { continue };
            let this = (ordinal, id.clone());
            let told = match self.memories().get_mut(key) {
                Some(memory) => memory.restart.replace(this.clone()) == Some(this),
                None => true,
            };
            if !told {
                let child = ChildId::new(Kind::Pod, world.object.names.instance(ordinal));
                let note = format!("{}: {}", step.id, step.reason);
                let news =
                    News { warning: false, reason, note: &note, child: Some(&child), occasion: entry.generation };
                self.events.tell(key, &entry.uid, news).await;
            }
        }
    }

    /// When to look again.
    fn verdict(
        &self,
        key: &ClusterKey,
        plan: &Plan,
        applied: &Applied,
        failed: bool,
        wrote: bool,
    ) -> (Outcome, Option<Duration>) {
        if failed {
            return (Outcome::Failed, Some(self.backoff(key)));
        }
        let mut memories = self.memories();
        let memory = memories.entry(key.clone()).or_default();
        memory.attempts = 0;
        self.metrics.set_failing(&key.namespace, &key.name, 0);
        let outcome = if wrote || !applied.done.is_empty() { Outcome::Changed } else { Outcome::Settled };
        if plan.settled() {
            memory.unsettled_since = None;
            return (outcome, Some(SETTLED));
        }
        let since = *memory.unsettled_since.get_or_insert_with(Instant::now);
        let again = if !applied.done.is_empty() {
            WROTE
        } else if since.elapsed() < PATIENCE {
            UNDER_WAY
        } else {
            // Watches tell of what changes; only agents have to be asked.
            UNDER_WAY * 10
        };
        (outcome, Some(again))
    }

    /// The line that is part of the contract: once per uid. Its marker is the status, or the ConfigMap where there is none.
    fn greet(&self, key: &ClusterKey, entry: &Entry) {
        if entry.greeted || !self.gate.leading() {
            return;
        }
        let Some(body) = &entry.body else { return };
        tracing::info!("### A handler is called with body: {body}");
        self.mirrors.objects.update(key, &key.name, |kept| {
            if kept.uid == entry.uid {
                kept.greeted = true;
                kept.body = None;
            }
        });
    }

    /// Nothing is looked at; thousands of these must be cheap.
    async fn paused(&self, key: &ClusterKey, entry: &Entry) -> Result<(Outcome, Option<Duration>), Error> {
        let world = blank(entry.facts(key), &self.observer.to_agents);
        let plan = plan(&world);
        let status = status(&world, &plan, &[]);
        let wrote = self.report(key, entry, &world, &status).await?;
        self.memories().remove(key);
        self.metrics.forget_cluster(&key.namespace, &key.name);
        Ok((if wrote { Outcome::Changed } else { Outcome::Settled }, None))
    }

    /// Writes the status, when it differs, and tells of what is new in it. True when something was written.
    #[tracing::instrument(name = "status", skip_all)]
    async fn report(
        &self,
        key: &ClusterKey,
        entry: &Entry,
        world: &World,
        status: &HelloOperatorStatus,
    ) -> Result<bool, Error> {
        let before = world.object.status.as_ref();
        if world.crd_degraded {
            // There is no status to write: what was told is remembered here.
            let told = self.memories().entry(key.clone()).or_default().told.replace(status.clone());
            self.tell(key, entry, world, told.as_ref().or(before), status).await;
            return Ok(false);
        }
        let value = |status: &HelloOperatorStatus| serde_json::to_value(status).unwrap_or(Value::Null);
        let old = before.map_or_else(|| json!({}), value);
        let Some(patch) = merge_patch(&old, &value(status)) else { return Ok(false) };
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": KIND,
            // An object of the same name that came later is not meant, nor one whose status was written since.
            "metadata": {"uid": &*entry.uid, "resourceVersion": &*entry.version},
            "status": patch,
        });
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), &key.namespace, &hello_operators());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let patch = Patch::Merge(&body);
        let written = match call("status cannot be written", api.patch_status(&key.name, &params, &patch)).await {
            Ok(written) => written,
            // Deleted meanwhile, or a bare CRD came and took the status away: the watches tell.
            Err(error) if error.code() == Some(404) => return Ok(false),
            Err(error) => return Err(error),
        };
        let version = written.metadata.resource_version;
        self.mirrors.objects.update(key, &key.name, |kept| {
            if kept.uid == entry.uid && kept.version == entry.version {
                kept.wrote(status, version.as_deref());
                kept.greeted = true;
                kept.body = None;
            }
        });
        self.tell(key, entry, world, before, status).await;
        Ok(true)
    }

    async fn tell(
        &self,
        key: &ClusterKey,
        entry: &Entry,
        world: &World,
        before: Option<&HelloOperatorStatus>,
        after: &HelloOperatorStatus,
    ) {
        if let Some(last) = completed(before, after) {
            self.count(key, world, last);
        }
        for Told { warning, reason, note, term } in events::of_status(before, after) {
            if warning {
                tracing::warn!(cluster = %key, reason, "{note}");
            } else {
                tracing::info!(cluster = %key, reason, "{note}");
            }
            let occasion = term.unwrap_or(entry.generation);
            let news = News { warning, reason: &reason, note: &note, child: None, occasion };
            self.events.tell(key, &entry.uid, news).await;
        }
    }

    /// Counts and traces a hand-over.
    fn count(&self, key: &ClusterKey, world: &World, last: &LastFailover) {
        if let Some(reason) = HandOverReason::ALL.into_iter().find(|reason| reason.as_str() == last.reason) {
            self.metrics.failed_over(&key.namespace, &key.name, reason, last.duration_seconds);
        }
        let Ok(started) = last.started_at.parse::<jiff::Timestamp>().map(SystemTime::from) else { return };
        let Ok(took) = Duration::try_from_secs_f64(last.duration_seconds) else { return };
        let lease = world.lease.present();
        self.hand_overs.record(&HandOver {
            namespace: &key.namespace,
            cluster: &key.name,
            uid: &world.object.uid,
            from: &last.from,
            to: &last.to,
            reason: &last.reason,
            term: last.term,
            started,
            taken: lease.and_then(|lease| lease.since).map(SystemTime::from),
            completed: started + took,
        });
    }
}
