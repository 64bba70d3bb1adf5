//! The shell around [`crate::core`] for the whole cluster: streams in, plan, writes out.

mod agents;
mod apply;
mod backups;
mod check;
mod client;
mod crd;
mod error;
mod events;
mod facts;
mod gauges;
mod keys;
mod mirror;
mod object;
mod observe;
mod owned;
mod patch;
mod queue;
mod random;
mod reconcile;
mod scrapers;
mod secrets;
mod show;
mod streams;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub use check::check;
pub use error::Error;
pub use show::show;

use crate::api::build;
use crate::config::{LogArgs, RunArgs, TelemetryEnv};
use crate::leader::{Elector, Gate, Settings, Timings, connect};
use crate::telemetry::health::{self, Health, Server};
use crate::telemetry::metrics::OperatorMetrics;
use crate::telemetry::secure;
use agents::Agents;
use apply::Applier;
use backups::Backups;
use crd::Degraded;
use events::Events;
use mirror::{ClusterKey, Scope};
use object::Entry;
use observe::{Observer, ToAgents};
use queue::Queue;
use reconcile::Reconciler;
use secrets::Secrets;
use streams::{Mirrors, News, Watching};

/// Name of the operator's own Lease.
const LEASE: &str = "hello-operator";
/// A watch that made no progress for so long hangs: each is begun anew after 200 s at most.
const STALE_WATCH: Duration = Duration::from_mins(6);
/// How long the end waits at most for looks under way. They begin nothing more then, so it is a fraction of a second.
const LAST_LOOKS: Duration = Duration::from_secs(2);
/// How often an operator that does not lead looks whether it does.
const STANDBY: Duration = Duration::from_millis(50);

/// Runs the operator until it is told to end.
pub async fn run(args: RunArgs, log: LogArgs) -> Result<(), Error> {
    let environment = TelemetryEnv::read();
    let telemetry = crate::telemetry::init(&log, &environment, "hello-operator")?;
    let traces = environment.traces.as_ref().and_then(|to| to.for_agents()).cloned();
    let to_agents = ToAgents { image: args.agent_image.clone(), traces };
    let outcome = serve(args, to_agents, &telemetry).await;
    telemetry.shutdown().await;
    outcome
}

async fn serve(args: RunArgs, to_agents: ToAgents, telemetry: &crate::telemetry::Telemetry) -> Result<(), Error> {
    let metrics = Arc::new(OperatorMetrics::new()?);
    telemetry.register(metrics.registry())?;
    let (config, inside) = client::configuration().await?;
    let config = client::bounded(&config);
    let end = shutdown()?;

    let elector = if args.standalone {
        None
    } else {
        let settings = Settings {
            namespace: args.namespace.clone(),
            lease: LEASE.into(),
            identity: args.identity.clone(),
            timings: Timings::default(),
        };
        Some(Elector::new(&config, settings).map_err(|error| Error::Config(error.to_string()))?)
    };
    let gate = elector.as_ref().map_or_else(Gate::always, Elector::gate);
    let reader = client::counted(client::reader(&config, Arc::clone(&metrics))?, &config, Arc::clone(&metrics));
    let writer = connect(&config, gate.clone()).map_err(|error| Error::Config(error.to_string()))?;
    let writer = client::counted(writer, &config, Arc::clone(&metrics));

    let scopes = scopes(&args.watch_namespaces);
    let mirrors = Arc::new(Mirrors::filled_by(scopes.len()));
    let queue = Arc::new(Queue::default());
    let probes = Health::new();
    checks(&probes, &mirrors, &metrics);
    let exposition: health::Metrics = {
        let (metrics, queue, gate) = (Arc::clone(&metrics), Arc::clone(&queue), gate.clone());
        Arc::new(move || {
            metrics.set_queue_depth(queue.depth());
            metrics.set_leader(gate.leading());
            metrics.encode()
        })
    };
    if let Some(address) = args.metrics_listen {
        let (tls, guard) = (scrapers::tls(&args.namespace)?, scrapers::guard(reader.clone()));
        let secure = secure::Server::bind(address, tls, Arc::clone(&exposition), guard).await?;
        tracing::info!(address = %secure.address(), "metrics are served over TLS, to whom the API server lets get them");
        tokio::spawn(secure.serve(end.clone().wait()));
    }
    let server = Server::bind(args.listen, &probes, args.metrics_listen.is_none().then_some(exposition)).await?;
    let (version, commit) = (build::VERSION, build::COMMIT);
    tracing::info!(address = %server.address(), version, commit, inside, standalone = args.standalone, "the operator starts");
    let serving = tokio::spawn(server.serve(end.clone().wait()));

    let events = Arc::new(Events::new(writer.clone(), args.identity.clone()));
    let degraded = Degraded::new(&metrics)?;
    let secrets = Arc::new(Secrets::new(writer.clone()));
    let agents = Arc::new(Agents::new((!inside).then(|| writer.clone())));
    let observer =
        Observer::new(writer.clone(), Arc::clone(&mirrors), Arc::clone(&secrets), Arc::clone(&agents), to_agents);
    let applier = Applier { client: writer.clone(), gate: gate.clone(), secrets, agents, end: end.clone() };
    let reconciler = Arc::new(Reconciler::new(
        writer.clone(),
        gate.clone(),
        Arc::clone(&mirrors),
        Arc::clone(&queue),
        observer,
        applier,
        Arc::clone(&events),
        Arc::clone(&metrics),
        telemetry.hand_overs(),
        degraded.clone(),
        Backups::new(writer.clone(), Arc::clone(&mirrors), Arc::clone(&events), Arc::clone(&metrics)),
    ));

    let (leave, left) = tokio::sync::oneshot::channel::<()>();
    let electing = elector.map(|elector| {
        tokio::spawn(elector.run(async {
            let _ = left.await;
        }))
    });
    tokio::spawn(lead(
        gate.clone(),
        Arc::clone(&mirrors),
        Arc::clone(&queue),
        args.manage_crds.then(|| writer.clone()),
    ));
    let watch = crd::Watch {
        reader: reader.clone(),
        writer,
        gate: gate.clone(),
        manage: args.manage_crds,
        events,
        metrics: Arc::clone(&metrics),
        degraded,
    };
    // They belong to the whole cluster, so that with rights in namespaces only they cannot be looked at.
    let definitions = if args.watch_namespaces.is_empty() { &crd::Definition::ALL[..] } else { &[] };
    for definition in definitions.iter().copied() {
        let (watch, all) = (watch.clone(), (Arc::clone(&mirrors), Arc::clone(&queue)));
        tokio::spawn(async move { crd::watch(watch, definition, move || wake_all(&all.0, &all.1)).await });
    }
    for scope in scopes {
        let (client, mirrors, queue) = (reader.clone(), Arc::clone(&mirrors), Arc::clone(&queue));
        let watching = Watching { client, mirrors, queue, metrics: Arc::clone(&metrics), scope };
        let telling = gate.clone();
        streams::start(&watching, move |cluster, news| {
            if telling.leading() {
                tell(cluster, &news);
            }
        });
    }
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..args.concurrency {
        workers.spawn(work(Arc::clone(&reconciler), gate.clone(), end.clone()));
    }

    end.wait().await;
    tracing::info!("the operator ends");
    // First the looks under way: the line about a new object may be written and its marker not yet, and the next leader
    // would write it again.
    let looked = async { while workers.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_LOOKS, looked).await.is_err() {
        tracing::warn!("a look is not finished: the next leader does it again");
    }
    let _ = leave.send(());
    if let Some(electing) = electing {
        // It closes the gate, waits for the writes under way and releases the Lease.
        let _ = electing.await;
    }
    let _ = serving.await;
    Ok(())
}

/// What the watches cover: all namespaces by one watch of each kind, or some by one each.
fn scopes(namespaces: &[String]) -> Vec<Scope> {
    let named: BTreeSet<&str> = namespaces.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
    if named.is_empty() { vec![None] } else { named.into_iter().map(|name| Some(name.into())).collect() }
}

/// One worker: while this process leads, it looks at one cluster after the other. It ends between two looks.
async fn work(reconciler: Arc<Reconciler>, gate: Gate, end: End) {
    loop {
        let next = async {
            while !gate.leading() {
                tokio::time::sleep(STANDBY).await;
            }
            reconciler.queue.next().await
        };
        let key = tokio::select! {
            biased;
            () = end.clone().wait() => return,
            key = next => key,
        };
        if gate.leading() {
            Box::pin(reconciler.run(&key)).await;
        } else {
            reconciler.queue.add(key.clone(), Duration::ZERO);
        }
        reconciler.queue.done(&key);
    }
}

/// Who begins to lead looks at everything: another led meanwhile.
async fn lead(gate: Gate, mirrors: Arc<Mirrors>, queue: Arc<Queue>, manage: Option<kube::Client>) {
    let mut led = false;
    loop {
        let leads = gate.leading();
        if leads && !led {
            tracing::info!("this process leads");
            wake_all(&mirrors, &queue);
            if let Some(client) = &manage
                && let Err(error) = crd::ensure(client).await
            {
                tracing::error!(%error, "the CRDs cannot be installed");
            }
        } else if led && !leads {
            tracing::warn!("this process no longer leads");
        }
        led = leads;
        tokio::time::sleep(STANDBY).await;
    }
}

fn wake_all(mirrors: &Mirrors, queue: &Queue) {
    for cluster in mirrors.objects.clusters().into_iter().chain(mirrors.backups.clusters()) {
        queue.add(cluster, Duration::ZERO);
    }
}

/// One line for each change of an object: part of the contract, like the first.
fn tell(cluster: &ClusterKey, news: &News<'_, Entry>) {
    match news {
        News::Changed(Some(before), after) if before.uid == after.uid => {
            if let Some(change) = before.change(after) {
                tracing::info!(%cluster, generation = after.generation, "### A handler is called for an update: {change}");
            }
        }
        News::Changed(..) => {}
        News::Gone(entry) => {
            tracing::info!(%cluster, uid = &*entry.uid, "### A handler is called for a deletion: the object is gone");
        }
    }
}

fn checks(health: &Health, mirrors: &Arc<Mirrors>, metrics: &Arc<OperatorMetrics>) {
    let synced = Arc::clone(mirrors);
    health.ready("caches", move || match synced.unsynced() {
        None => Ok(()),
        Some(resource) => Err(format!("the watch of {resource} is not complete yet")),
    });
    let watches = Arc::clone(metrics);
    health.live("watches", move || match watches.stalest_watch() {
        Some((resource, age)) if age > STALE_WATCH => {
            Err(format!("the watch of {resource} made no progress for {} s", age.as_secs()))
        }
        _ => Ok(()),
    });
}

/// The end, once it is asked for.
#[derive(Clone)]
struct End(tokio::sync::watch::Receiver<bool>);

impl End {
    /// Whether it was asked for.
    fn came(&self) -> bool {
        *self.0.borrow()
    }
    async fn wait(mut self) {
        // The sender lives as long as the task that waits for signals: an error means that it ended.
        let _ = self.0.wait_for(|ended| *ended).await;
    }
}

fn shutdown() -> Result<End, Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).map_err(|error| Error::Internal(format!("signals: {error}")));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let (sender, receiver) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        let _ = sender.send(true);
    });
    Ok(End(receiver))
}
