//! The start of an agent: what it listens to and watches, and what it knows then.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::Error;
use super::archive::Archive;
use super::archive::stores::Stores;
use super::backups::{Backups, socket_path};
use super::conf::{Archiver, Place};
use super::election::Elections;
use super::endpoints::Endpoints;
use super::fence::Fence;
use super::files::Secrets;
use super::holds::Holds;
use super::lease::{LeaseApi, watch as watch_api};
use super::members::Members;
use super::observe::observe;
use super::peers::Peers;
use super::probe::{Verdict, Watched};
use super::process::Processes;
use super::report::Shared;
use super::room::Rooms;
use super::run::{Agent, Event, random_word};
use super::spans::Spans;
use super::sql::Socket;
use super::tenure::Containers;
use super::tls::Tls;
use super::volume::{Layout, VolumeLock};
use crate::api::build;
use crate::api::names::{BACKUP_MOUNT, Names, PORT_AGENT, PORT_HEALTH, PORT_POSTGRES, SECRETS_MOUNT, SOCKET_DIR};
use crate::backup::target::CloudIdentity;
use crate::config::AgentArgs;
use crate::core::election::{Data, EngineState, Identity};
use crate::telemetry::traces::agent::AgentTraces;

/// Runs the agent until it is told to end and everything is in order, or something is so broken that a fresh start in the
/// same Pod is the better way.
pub async fn run(args: AgentArgs, cloud: CloudIdentity) -> Result<(), Error> {
    let processes = Processes::new()?;
    let names = Names::new(&args.cluster);
    let secrets = Secrets::new(SECRETS_MOUNT);
    let layout = Layout::new(&args.data, args.wal.clone());
    let socket = Socket::new(SOCKET_DIR, PORT_POSTGRES);
    let me = Identity {
        instance: args.instance.clone(),
        pod_uid: args.pod_uid.clone(),
        nonce: random_word(),
        address: args.address.to_string(),
    };
    tracing::info!(instance = %me.instance, nonce = %me.nonce, version = build::VERSION, commit = build::COMMIT, "the agent begins");
    let shared = Shared::new(super::publish::first_report(&me));
    let traces = AgentTraces::new(&args.namespace, &args.cluster, &args.instance);
    let (events, inbox) = mpsc::channel(64);
    // Health first: the kubelet must be able to see an agent that waits for its volume.
    let health = crate::telemetry::health::Server::bind(
        SocketAddr::new(unspecified(args.address), PORT_HEALTH),
        &shared.health(),
        {
            let (shared, traces) = (shared.clone(), traces.clone());
            Some(Arc::new(move || shared.metrics(&traces)))
        },
    )
    .await
    .map_err(|error| Error::Invalid { what: "the address of the health endpoints", message: error.to_string() })?;
    tokio::spawn(health.serve(std::future::pending()));

    let lock = take_volume(&layout, &shared).await?;
    let fence = Fence::start(processes.clone())?;
    let client = client()?;
    let tls = Tls::load(&secrets)?;
    super::server::serve(
        SocketAddr::new(unspecified(args.address), PORT_AGENT),
        tls.clone(),
        shared.clone(),
        events.clone(),
        socket.clone(),
        traces.clone(),
    )
    .await?;
    let stores = Stores::new(client.clone(), &args.namespace, cloud);
    let backups = Backups::new(Archive::new(stores, BACKUP_MOUNT, layout.spare()));
    super::archive::socket::serve(backups.archive.clone(), &socket_path())?;
    let program = std::env::current_exe().map_err(Error::io("find", "/proc/self/exe"))?;
    let archiver = Archiver { program, socket: socket_path() };
    let (running, running_seen) = watch::channel(false);
    let (eager, eager_seen) = watch::channel(true);
    tokio::spawn(observe(socket.clone(), layout.pgdata(), running_seen, eager_seen, events.clone()));
    let health = watch_health(&layout, &socket, running.subscribe(), &events);
    watch_api(client.clone(), &args.namespace, &names, &events);
    listen_to_signals(&events)?;

    let mut state = layout.settle(&lock)?;
    let before = state.began.replace(Timestamp::now().as_millisecond());
    layout.store(&state)?;
    let place = Place { instance: args.instance.clone(), memory: args.memory_bytes, layout, socket, secrets, archiver };
    let mut agent = Agent {
        duties: super::duties::Duties::new(&place.secrets),
        spans: Spans::new(traces),
        lease_api: LeaseApi::new(client.clone(), &args.namespace, &names),
        peers: Peers::new(client.clone(), &args.namespace, tls.clone()),
        endpoints: Endpoints::new(client, &args.namespace, &names),
        me,
        namespace: args.namespace,
        cluster: args.cluster,
        backups,
        address: args.address,
        place,
        lock,
        processes,
        fence,
        tls,
        events,
        shared,
        lease: None,
        writing: false,
        reading: false,
        read_due: Duration::ZERO,
        read_not_before: Duration::ZERO,
        lease_read_sent: Duration::ZERO,
        doubtful: false,
        unknown: Vec::new(),
        campaigns_on: None,
        containers: Containers::default(),
        before,
        hand_over: None,
        ends: None,
        elections: Elections::new(),
        holds: Holds::new(state.hold.as_ref()),
        restarting: false,
        rooms: Rooms::default(),
        switchover: None,
        tenure: None,
        config: None,
        terms: None,
        state,
        data: Data::Unknown,
        critical: None,
        engine: EngineState::Stopped,
        postmaster: None,
        job: None,
        jobs_begun: 0,
        not_before: Duration::ZERO,
        failures: 0,
        cannot_follow: false,
        given_up: None,
        cloned_again: None,
        members: Members::default(),
        observation: None,
        stopping: None,
        released: false,
        restart: None,
        waits: None,
        trouble: None,
        refusal: None,
        rejected: None,
        health,
        doomed: false,
        looking: false,
        running,
        eager,
        wake: None,
    };
    agent.look_at_volume().await?;
    agent.run(inbox).await;
    Ok(())
}

/// Starts the probes, and wakes the loop when they find something.
fn watch_health(
    layout: &Layout,
    socket: &Socket,
    running: watch::Receiver<bool>,
    events: &mpsc::Sender<Event>,
) -> watch::Receiver<Verdict> {
    let (sender, receiver) = watch::channel(Verdict::default());
    let watched = Watched { socket: socket.clone(), layout: layout.clone() };
    tokio::spawn(async move {
        if let Err(error) = super::probe::watch(watched, running, sender).await {
            tracing::error!(%error, "the probes of PostgreSQL do not run");
        }
    });
    let (mut changes, events) = (receiver.clone(), events.clone());
    tokio::spawn(async move { while changes.changed().await.is_ok() && events.send(Event::Child).await.is_ok() {} });
    receiver
}

/// All addresses of the family that the Pod has.
fn unspecified(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

pub(super) fn client() -> Result<Client, Error> {
    let invalid = |message: String| Error::Invalid { what: "the Pod's access to the API server", message };
    let mut config = kube::Config::incluster().map_err(|error| invalid(error.to_string()))?;
    config.connect_timeout = Some(Duration::from_secs(3));
    // Longer than a watch lives; every other call has a shorter limit of its own.
    config.read_timeout = Some(Duration::from_secs(210));
    Client::try_from(config).map_err(|error| invalid(error.to_string()))
}

/// An agent of an earlier container of this Pod, or of a Pod that is still ending, may hold the volume for a moment.
async fn take_volume(layout: &Layout, shared: &Shared) -> Result<VolumeLock, Error> {
    loop {
        match layout.lock() {
            Err(error @ Error::Locked(_)) => {
                let mut report = shared.report();
                report.message = Some(error.to_string());
                shared.publish(report, None);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            other => return other,
        }
    }
}

fn listen_to_signals(events: &mpsc::Sender<Event>) -> Result<(), Error> {
    let listen = |kind: SignalKind| signal(kind).map_err(Error::io("listen to signals", "/proc/self"));
    for (kind, event) in [
        (SignalKind::terminate(), (|| Event::Stop) as fn() -> Event),
        (SignalKind::interrupt(), || Event::Stop),
        (SignalKind::child(), || Event::Child),
    ] {
        let (mut stream, events) = (listen(kind)?, events.clone());
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if events.send(event()).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}
