//! The shell around the state machine: the requests, the watch, the timers.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::client::ClientBuilder;
use kube::runtime::{WatchStreamExt, watcher};
use kube_leader_election::{Error as LeaseError, LeaseLock, LeaseLockParams, LeaseLockResult};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::clock;
use super::gate::Gate;
use super::guard::{GuardLayer, Undecided, record};
use super::state::{Machine, Moment, Timings};

/// Some load balancers cut what is silent for 240 s.
const WATCH_SECONDS: u32 = 180;
/// How long a release waits for writes under way.
const DRAIN: Duration = Duration::from_secs(2);
/// A release is attempted this often, each for so long; then the Lease runs out instead.
const RELEASES: usize = 3;
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// The crate uses the holder's name as a field manager too, which may have 128 characters.
const MAX_IDENTITY: usize = 100;

/// Which Lease, and who we are.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub lease: String,
    /// Name of this process for people; what makes it unique is added.
    pub identity: String,
    /// Its bounds.
    pub timings: Timings,
}

/// What this process knows of who leads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leadership {
    /// Whether this process does.
    pub leading: bool,
    /// Who holds the Lease, as last read.
    pub holder: Option<String>,
    /// Since when it is so.
    pub since: Option<Timestamp>,
}

/// The election cannot even begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig or the cluster's configuration makes no client.
    #[error("cannot make the client for the Lease: {0}")]
    Client(#[source] kube::Error),
}

/// What the elector and the layer of its client have in common.
pub(super) struct Shared {
    machine: Mutex<Machine>,
    gate: Gate,
    leadership: watch::Sender<Leadership>,
}

impl Shared {
    fn new(machine: Machine) -> Self {
        let gate = Gate::closed(machine.timings().grace());
        Self { machine: Mutex::new(machine), gate, leadership: watch::Sender::default() }
    }

    /// Changes the machine, and whatever follows from it: the gate at once, and what is told to others.
    pub(super) fn update<R>(&self, change: impl FnOnce(&mut Machine) -> R) -> R {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut machine);
        self.gate.set(machine.valid_until());
        let leading = machine.leading(clock::now());
        self.leadership.send_if_modified(|known| {
            if known.leading == leading && known.holder.as_deref() == machine.holder() {
                return false;
            }
            let since = if known.leading == leading { known.since } else { Some(Timestamp::now()) };
            *known = Leadership { leading, holder: machine.holder().map(str::to_owned), since };
            info!(leading, holder = known.holder.as_deref().unwrap_or("nobody"), "leadership");
            true
        });
        result
    }
}

/// Gets, keeps and gives back the Lease.
pub struct Elector {
    shared: Arc<Shared>,
    lock: LeaseLock,
    leases: Api<Lease>,
    lease: String,
    timings: Timings,
}

impl Elector {
    /// An elector with a client of its own. Nothing is sent before [`Elector::run`].
    pub fn new(config: &kube::Config, settings: Settings) -> Result<Self, Error> {
        let Settings { namespace, lease, identity, timings } = settings;
        let identity: String = identity.chars().take(MAX_IDENTITY).collect();
        let holder_id = format!("{identity}_{:016x}", rand::random::<u64>());
        let shared = Arc::new(Shared::new(Machine::new(holder_id.clone(), timings)));

        let mut config = config.clone();
        config.default_retry = false;
        config.connect_timeout = Some(timings.attempt_timeout());
        config.write_timeout = Some(timings.attempt_timeout());
        // The watch sees a renewal far more often than that, unless its connection is dead.
        config.read_timeout = Some(timings.lease());
        let client = ClientBuilder::try_from(config)
            .map_err(Error::Client)?
            .with_layer(&GuardLayer::new(Arc::clone(&shared), &namespace, &lease))
            .build();
        let leases = Api::namespaced(client.clone(), &namespace);
        let params = LeaseLockParams { lease_name: lease.clone(), holder_id, lease_ttl: timings.lease() };
        Ok(Self { shared, lock: LeaseLock::new(client, &namespace, params), leases, lease, timings })
    }

    /// What to ask before acting.
    pub fn gate(&self) -> Gate {
        self.shared.gate.clone()
    }

    /// Who leads, and each change of it.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.shared.leadership.subscribe()
    }

    /// This process's name in the Lease.
    pub fn identity(&self) -> String {
        self.shared.update(|machine| machine.me().to_owned())
    }

    /// Takes part in the election until `shutdown`; then closes the gate, waits for the writes under way, and releases
    /// the Lease, so that another replica goes on at once.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut hints = pin!(self.hints());
        let mut failing = false;
        'election: loop {
            let (next, mut deadline) = self.shared.update(|machine| (machine.next_attempt(), machine.valid_until()));
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = until(deadline) => {
                    self.lapse();
                    continue;
                }
                () = clock::sleep_until(next) => {}
                Some(hint) = hints.next() => {
                    self.shared.update(|machine| hint.apply(machine));
                    continue;
                }
            }
            let mut attempt = pin!(self.attempt());
            loop {
                tokio::select! {
                    biased;
                    () = &mut shutdown => break 'election,
                    () = until(deadline) => {
                        self.lapse();
                        deadline = None;
                    }
                    result = &mut attempt => {
                        report(result, &mut failing);
                        break;
                    }
                }
            }
        }
        self.release().await;
    }

    /// The gate has closed by itself; this tells the others.
    fn lapse(&self) {
        warn!("the Lease could not be renewed in time: this replica stops acting");
        self.shared.update(Machine::lapse);
    }

    /// What the watch says of the Lease.
    fn hints(&self) -> impl Stream<Item = Hint> + use<> {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.lease)).timeout(WATCH_SECONDS);
        watcher(self.leases.clone(), config).default_backoff().filter_map(async |event| match event {
            Ok(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease)) => Some(Hint::Now(Box::new(lease))),
            Ok(watcher::Event::Delete(_)) => Some(Hint::Gone),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => None,
            Err(error) => {
                debug!(%error, "watch of the Lease; it is read periodically as well");
                None
            }
        })
    }

    /// One read and, if so decided, one write.
    async fn attempt(&self) -> Result<(), Failure> {
        // Validity counts from before anything was sent.
        let began = clock::now();
        self.shared.update(|machine| machine.begin(began));
        let result = match tokio::time::timeout(self.timings.attempt_timeout(), self.lock.try_acquire_or_renew()).await
        {
            Ok(Ok(LeaseLockResult::Acquired(lease))) => {
                let written = serde_json::to_value(&lease).ok().as_ref().and_then(record).ok_or(Failure::NoRecord)?;
                self.shared.update(|machine| machine.written(began, clock::now(), written));
                Ok(())
            }
            Ok(Ok(LeaseLockResult::NotAcquired(_))) => Ok(()),
            Ok(Err(error)) if undecided(&error) => Ok(()),
            Ok(Err(error)) => Err(Failure::Lease(error)),
            Err(_) => Err(Failure::Timeout),
        };
        if result.is_err() {
            self.shared.update(Machine::failed);
        }
        result
    }

    async fn release(&self) {
        let held = self.shared.update(|machine| {
            machine.stop();
            machine.holder() == Some(machine.me())
        });
        if !held {
            return;
        }
        if !self.shared.gate.drained(DRAIN).await {
            warn!("a write is still unanswered: the Lease is left to run out");
            return;
        }
        for _ in 0..RELEASES {
            match tokio::time::timeout(RELEASE_TIMEOUT, self.lock.step_down()).await {
                Ok(Ok(())) => {
                    info!("released the Lease");
                    return;
                }
                Ok(Err(LeaseError::ReleaseLockWhenNotLeading { leader })) => {
                    info!(holder = leader, "the Lease is no longer ours to release");
                    return;
                }
                Ok(Err(error)) => debug!(%error, "release of the Lease"),
                Err(_) => debug!("release of the Lease: no answer in time"),
            }
        }
        warn!("could not release the Lease: it is left to run out");
    }
}

async fn until(deadline: Option<Moment>) {
    match deadline {
        Some(deadline) => clock::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What the watch saw. It may be older than what was read, so it decides nothing.
enum Hint {
    Now(Box<Lease>),
    Gone,
}

impl Hint {
    fn apply(&self, machine: &mut Machine) {
        let news = match self {
            Self::Gone => true,
            Self::Now(lease) => {
                let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
                // Our own renewals come back here, and must not cause the next.
                holder != Some(machine.me())
                    && lease.metadata.resource_version.as_deref()
                        != machine.record().map(|record| record.version.as_str())
            }
        };
        if news {
            machine.hint();
        }
    }
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Lease(LeaseError),
    #[error("no answer in time")]
    Timeout,
    #[error("the API server's answer is not a Lease")]
    NoRecord,
}

/// Whether the layer kept the crate from writing, because nothing was decided.
fn undecided(error: &LeaseError) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = match error {
        LeaseError::GetLease(inner)
        | LeaseError::CreateLease(inner)
        | LeaseError::AcquireLease(inner)
        | LeaseError::RenewLease(inner)
        | LeaseError::ReleaseLease(inner)
        | LeaseError::Kube(inner) => Some(inner),
        _ => None,
    };
    while let Some(error) = next {
        if error.is::<Undecided>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// Says once that it fails, and once that it works again.
fn report(result: Result<(), Failure>, failing: &mut bool) {
    match result {
        Ok(()) if *failing => {
            info!("the Lease can be read and written again");
            *failing = false;
        }
        Ok(()) => {}
        Err(error) if *failing => debug!(%error, "the Lease still cannot be read or written"),
        Err(error) => {
            warn!(%error, "the Lease cannot be read or written");
            *failing = true;
        }
    }
}
