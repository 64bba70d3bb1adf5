//! A cluster of three with writing clients, and what must hold in it whatever happened.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use futures::future::join_all;
use hello_operator::api::agent::Lsn;
use hello_operator::api::names::{ANNOTATION_REGISTER, Names};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::super::{Case, Result, SOON, Suite};
use super::ledger::{Ledger, Range};
use super::writer::{Load, Writer};
use crate::cluster::{Node, eventually};

/// Name of the cluster in every case.
pub const NAME: &str = "db";
/// A question to one instance; one that is frozen does not answer.
const ANSWER: Duration = Duration::from_secs(8);
/// Until all stream again after everything was put back: a clone on a busy machine is part of it.
const CONVERGED: Duration = Duration::from_secs(150);

/// What a fault cost the clients.
#[derive(Debug, Clone, Copy)]
pub struct Recovery {
    /// The longest time between two acknowledged rows.
    pub gap: Duration,
    /// How many attempts failed.
    pub failures: usize,
    /// By how much the term of the Lease moved.
    pub takes: i64,
}

/// The cluster and its clients.
pub struct World {
    pub suite: &'static Suite,
    pub case: Case,
    pub names: Names,
    instances: Vec<String>,
    /// Where each instance runs: its volume is there, so it stays.
    homes: BTreeMap<String, u8>,
    writer: Writer,
    /// Whether the object's status is kept up to date.
    pub operated: bool,
}

impl World {
    /// Starts three instances and the clients.
    pub async fn start(suite: &'static Suite, case: &Case, spec: Value, load: Load) -> Result<Self> {
        case.running(NAME, spec).await?;
        Self::write_to(suite, case, load).await
    }

    /// The clients of a cluster that runs.
    pub async fn write_to(suite: &'static Suite, case: &Case, load: Load) -> Result<Self> {
        let mut homes = BTreeMap::new();
        for pod in case.pods(NAME).await? {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).ok_or("it is on a node")?;
            homes.insert(pod.name_any(), node.trim_start_matches("node").parse()?);
        }
        let instances = homes.keys().cloned().collect();
        let writer = Writer::start(case, NAME, load).await?;
        let names = Names::new(NAME);
        let world = Self { suite, case: case.clone(), names, instances, homes, writer, operated: true };
        world.writes_on(SOON).await?;
        Ok(world)
    }

    pub fn ledger(&self) -> &Ledger {
        self.writer.ledger()
    }

    // --- who is who

    /// The register of the election.
    pub async fn register(&self) -> Result<Value> {
        let lease = self.case.api::<Lease>().get(&self.names.lease()).await?;
        let text = lease.annotations().get(ANNOTATION_REGISTER).ok_or("the Lease has a register")?;
        Ok(serde_json::from_str(text)?)
    }

    pub async fn term(&self) -> Result<i64> {
        Ok(self.register().await?.pointer("/term").and_then(Value::as_i64).ok_or("a term")?)
    }

    /// Who holds the Lease.
    pub async fn primary(&self) -> Result<String> {
        let register = self.register().await?;
        let holder = register.pointer("/holder").and_then(Value::as_str).unwrap_or_default();
        let instance = holder.split('/').next().unwrap_or_default();
        if instance.is_empty() || register.pointer("/release").is_some_and(|release| !release.is_null()) {
            return Err(format!("nobody holds the Lease: {register}").into());
        }
        Ok(instance.to_owned())
    }

    /// Everybody else.
    pub async fn replicas(&self) -> Result<Vec<String>> {
        let primary = self.primary().await?;
        Ok(self.instances.iter().filter(|instance| **instance != primary).cloned().collect())
    }

    /// The primary and two replicas.
    pub async fn roles(&self) -> Result<(String, String, String)> {
        let mut replicas = self.replicas().await?.into_iter();
        let (first, second) = (replicas.next().ok_or("a replica")?, replicas.next().ok_or("two replicas")?);
        Ok((self.primary().await?, first, second))
    }

    /// Where an instance runs.
    pub fn node_of(&self, instance: &str) -> Result<Node> {
        let number = self.homes.get(instance).ok_or_else(|| format!("nobody knows {instance}"))?;
        Ok(self.suite.cluster().node(*number))
    }

    pub fn pod(&self, instance: &str) -> crate::cluster::Pod {
        self.suite.cluster().pod(self.case.namespace(), instance)
    }

    /// A statement on an instance, as its superuser, past network and API server.
    pub async fn sql(&self, instance: &str, statement: &str) -> Result<String, String> {
        match tokio::time::timeout(ANSWER, self.case.sql(instance, statement)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("{instance} does not answer")),
        }
    }

    /// The instances that would take a write.
    pub async fn writable(&self) -> Vec<String> {
        let asked = self.instances.iter().map(|instance| async move {
            let answer = self.sql(instance, "select pg_is_in_recovery()").await;
            (answer.as_deref() == Ok("f")).then(|| instance.clone())
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    // --- waiting

    /// Waits until a row is acknowledged that was sent after this was called.
    pub async fn writes_on(&self, limit: Duration) -> Result {
        let moment = Instant::now();
        self.acknowledged_after(moment, limit).await
    }

    async fn acknowledged_after(&self, moment: Instant, limit: Duration) -> Result {
        eventually(limit, "a row to be acknowledged", || async {
            if self.ledger().acknowledged_after(moment) { Ok(()) } else { Err(self.complaints(moment)) }
        })
        .await?;
        Ok(())
    }

    fn complaints(&self, since: Instant) -> String {
        let all = self.ledger().failures_since(since);
        let last = all.iter().rev().take(3).cloned().collect::<Vec<_>>().join("; ");
        format!("{} attempts failed, last: {last}", all.len())
    }

    /// Waits until somebody else, or the same instance anew, has taken the Lease and takes writes.
    pub async fn taken(&self, since: Instant, term: i64, limit: Duration) -> Result<Recovery> {
        eventually(limit, &format!("a term after {term}"), || async {
            let register = self.register().await.map_err(|error| error.to_string())?;
            let now = register.pointer("/term").and_then(Value::as_i64).unwrap_or_default();
            if now > term && self.primary().await.is_ok() { Ok(()) } else { Err(register.to_string()) }
        })
        .await?;
        self.writes_on(limit.saturating_sub(since.elapsed()).max(Duration::from_secs(1))).await?;
        Ok(self.cost_since(since, self.term().await? - term))
    }

    /// What the time since then cost the clients.
    pub fn cost_since(&self, since: Instant, takes: i64) -> Recovery {
        let failures = self.ledger().failures_since(since).len();
        Recovery { gap: self.ledger().longest_gap_since(since), failures, takes }
    }

    // --- what must hold

    /// Every acknowledged row is on an instance.
    pub async fn nothing_lost_on(&self, instance: &str) -> Result {
        let wrongs = self.ledger().wrongs();
        if !wrongs.is_empty() {
            return Err(format!("reads that did not see what was written: {wrongs:#?}").into());
        }
        // Many short statements rather than one that no command line holds.
        for part in self.ledger().ranges().chunks(500) {
            let missing = self.sql(instance, &missing_of(part)).await?;
            if !missing.is_empty() {
                return Err(
                    format!("{instance} has lost acknowledged rows (session|first|last|lost):\n{missing}").into()
                );
            }
        }
        Ok(())
    }

    /// One instance takes writes, it is the holder of the Lease, and it has every acknowledged row.
    pub async fn one_primary_with_every_row(&self) -> Result {
        let primary = eventually(SOON, "exactly one writable instance, the holder", || async {
            let (holder, writable) = (self.primary().await.map_err(|error| error.to_string())?, self.writable().await);
            if writable.len() > 1 {
                return Ok(Err(format!("{writable:?} are writable at once")));
            }
            if writable == [holder.clone()] { Ok(Ok(holder)) } else { Err(format!("{writable:?}, holder {holder}")) }
        })
        .await??;
        self.nothing_lost_on(&primary).await
    }

    /// Everybody streams from the holder and has every acknowledged row, and the operator, if it runs, says so.
    pub async fn converged(&self) -> Result<Duration> {
        let since = Instant::now();
        eventually(CONVERGED, "all instances to stream", || async {
            let primary = self.primary().await.map_err(|error| error.to_string())?;
            let end = self.sql(&primary, "select pg_current_wal_flush_lsn()").await?;
            let end: Lsn = end.parse().map_err(|error| format!("{primary}: {error}"))?;
            let streaming =
                self.sql(&primary, "select count(*) from pg_stat_replication where state = 'streaming'").await?;
            if streaming != (self.instances.len() - 1).to_string() {
                return Err(format!("{streaming} stream from {primary}"));
            }
            for instance in self.instances.iter().filter(|instance| **instance != primary) {
                let text = self.sql(instance, "select pg_is_in_recovery(), pg_last_wal_replay_lsn()").await?;
                let (replica, replayed) = text.split_once('|').ok_or_else(|| format!("{instance}: {text}"))?;
                let replayed: Lsn = replayed.parse().map_err(|error| format!("{instance}: {error}"))?;
                if replica != "t" || replayed < end {
                    return Err(format!("{instance} is at {text}, {primary} at {end}"));
                }
            }
            Ok(())
        })
        .await?;
        if self.operated {
            self.case.ready(NAME).await?;
        }
        for instance in &self.instances {
            // What is acknowledged right now is on its way to a replica.
            let what = format!("every row to be on {instance}");
            let check = || async { self.nothing_lost_on(instance).await.map_err(|error| error.to_string()) };
            eventually(SOON, &what, check).await?;
        }
        // A wish for another primary may have come true meanwhile.
        self.one_primary_with_every_row().await?;
        Ok(since.elapsed())
    }

    /// No instance takes a write, and none was acknowledged for so long.
    pub async fn nobody_writes_for(&self, time: Duration) -> Result {
        let since = Instant::now();
        while since.elapsed() < time {
            let writable = self.writable().await;
            if !writable.is_empty() {
                return Err(format!("{writable:?} became writable").into());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        match self.ledger().count_since(since) {
            0 => Ok(()),
            count => Err(format!("{count} rows were acknowledged by nobody knows whom").into()),
        }
    }

    // --- doing

    /// Replaces the Pods of replicas whose container was restarted: the kubelet waits longer with each restart, up to five
    /// minutes, and a series of faults would measure that. For this the operator runs.
    pub async fn forget_restarts(&self) -> Result {
        let mut replaced = false;
        for instance in self.replicas().await? {
            let pod = self.case.api::<Pod>().get(&instance).await?;
            let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
            if statuses.iter().any(|status| status.restart_count > 0) {
                self.case.replaced::<Pod>(&instance).await?;
                replaced = true;
            }
        }
        if replaced { self.converged().await.map(drop) } else { Ok(()) }
    }

    /// Asks for another primary, as a user does.
    pub async fn ask_for(&self, instance: &str) -> Result {
        self.case.change(NAME, json!({"primary": instance})).await
    }
}

/// A query that gives the ranges of which rows are missing.
fn missing_of(ranges: &[Range]) -> String {
    let mut values = String::from("(0, 0::bigint, -1::bigint)");
    for Range { session, first, last } in ranges {
        let _ = write!(values, ", ({session}, {first}, {last})");
    }
    format!(
        "select * from (select s, a, b, b - a + 1 - (select count(*) from acknowledged where session = s and n between a \
         and b) as lost from (values {values}) as range (s, a, b)) as counted where lost <> 0"
    )
}
