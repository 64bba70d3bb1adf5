//! What an agent knows when it decides: facts with their time, nothing live.

use std::time::Duration;

use super::engine_step::Source;
use super::mutation::{Mutation, active};
use super::register::Register;
use super::rules::{Joined, Rule};
use super::vote::{Answer, Promise};
use crate::api::agent::Lsn;
use crate::api::config::LeaseBounds;
use crate::api::spec::Durability;

/// A moment on CLOCK_BOOTTIME, which neither jumps nor stands still while the machine sleeps.
pub type Boot = Duration;

/// Time that the complete stop of PostgreSQL may take. `renewDeadline + this < leaseDuration`.
pub const STOP_BUDGET: Duration = Duration::from_secs(2);

/// Everything that a decision may depend on.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// Now.
    pub now: Boot,
    /// This start of this agent.
    pub me: &'a Identity,
    /// The register as last read, also while the API server is away or the Lease is gone (absent is not released); None
    /// until it was read once.
    pub lease: Option<&'a Seen>,
    /// This agent's own holding of the Lease, if it took it and has not seen it lost.
    pub tenure: Option<&'a Tenure>,
    /// What the user wants; None until the configuration was read.
    pub terms: Option<&'a Terms>,
    /// What is on the volume.
    pub data: &'a Data,
    /// What PostgreSQL does.
    pub engine: &'a EngineState,
    /// The holder's view of the members. Each member that a rule names has an entry.
    pub joined: &'a [Joined],
    /// What this member promised candidates; it follows nobody while it stands.
    pub promise: Option<&'a Promise>,
    /// Until when this member is bound by a hold; None: not known yet, so bound.
    pub bound_until: Option<Boot>,
    /// The answers to this candidate's last freeze.
    pub ballot: Option<&'a Ballot>,
    /// The history of the holder that the register names, once it told it.
    pub fork: Option<&'a History>,
    /// Container id of the holder's that the kubelet reported as terminated. `ContainerStatusUnknown` is none.
    pub terminated: Option<&'a str>,
    /// This agent's own container id, once its Pod's status shows it.
    pub container_id: Option<&'a str>,
    /// The rule that is proven to be in force (the holder only).
    pub confirmed: Option<&'a Rule>,
    /// Whether the WAL that this replica needs is gone at its source, so that only a fresh clone helps.
    pub cannot_follow: bool,
    /// Whether PostgreSQL was stopped on purpose, to be started again in place.
    pub restarting: bool,
    /// Whether this agent was asked to end.
    pub stopping: bool,
}

/// One start of one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Name of the instance, which is the Pod's.
    pub instance: String,
    /// Uid of the Pod.
    pub pod_uid: String,
    /// Random, anew at each start.
    pub nonce: String,
    /// Address of the Pod.
    pub address: String,
}

impl Identity {
    /// The holder string of this start.
    pub fn holder(&self) -> String {
        format!("{}/{}/{}", self.instance, self.pod_uid, self.nonce)
    }

    /// Whether `holder` is another (and so an earlier) start in this same Pod. Its PID 1 has ended, and the kernel ended
    /// the rest of its PID namespace with it.
    pub fn is_earlier_start(&self, holder: &str) -> bool {
        let prefix = format!("{}/{}/", self.instance, self.pod_uid);
        holder.strip_prefix(&prefix).is_some_and(|nonce| nonce != self.nonce)
    }

    /// A member id of this start for `instance`, unique because the nonce is.
    pub fn member_for(&self, instance: &str) -> String {
        format!("{instance}-{}", self.nonce)
    }
}

/// The register as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What it says.
    pub register: Register,
    /// resourceVersion of this very state.
    pub version: String,
    /// When this process first saw this version, on its own clock: the time that another machine wrote is never used.
    pub since: Boot,
}

/// This agent's holding of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    /// Term that it took.
    pub term: i64,
    /// When the last successful renewal (or the take) was **sent**.
    pub renewed: Boot,
    /// When the last attempt to renew was sent, whatever became of it.
    pub attempted: Boot,
    /// To when the members' holds extend it.
    pub held_until: Option<Boot>,
    /// Whether PostgreSQL was writable in it.
    pub served: bool,
    /// The end that was begun: a planned hand-over, or a release that was **sent**, whatever became of it. It never goes
    /// again in this tenure: the write may still arrive, so PostgreSQL must not be started.
    pub ending: Option<Ending>,
}

/// A planned end of a tenure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Who should be next.
    pub wish: Option<String>,
}

/// The answers to a freeze.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ballot {
    /// The version on which they froze.
    pub version: String,
    /// When the round ended.
    pub at: Boot,
    /// How many rounds on this version came before it.
    pub before: u32,
    /// The answers, the candidate's own among them.
    pub answers: Vec<Answer>,
}

/// The history of a holder's data: each timeline before its own with the position at which it was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Term of the holder that told it.
    pub term: i64,
    /// (timeline, where it was left), oldest first; the last is the holder's own timeline, with no end.
    pub forks: Vec<(u32, Option<Lsn>)>,
}

impl History {
    /// Where data goes another way than this history: the last timeline and position that both have. None where all of it is in
    /// this history. `own`: each timeline of the data with the position at which it was left, its own last with its end.
    pub fn parts(&self, own: &[(u32, Lsn)]) -> Option<(u32, Lsn)> {
        let mut shared = (0, Lsn(0));
        for (timeline, end) in own {
            let Some((_, left)) = self.forks.iter().find(|(id, _)| id == timeline) else { return Some(shared) };
            match left {
                Some(left) if left < end => return Some((*timeline, *left)),
                _ => shared = (*timeline, *end),
            }
        }
        None
    }

    /// Whether WAL that ends at this position is all in this history.
    pub fn contains(&self, timeline: u32, end: Lsn) -> bool {
        self.forks.iter().any(|(id, left)| *id == timeline && left.is_none_or(|left| end <= left))
    }
}

impl View<'_> {
    /// When this agent's tenure ends if nothing happens: by the bounds that stand in the register (others count by these),
    /// and not later than by those that are to come. None without a tenure.
    pub fn deadline(&self) -> Option<Boot> {
        let tenure = self.tenure?;
        let registered = self.lease.map(|seen| tenure.deadline(&seen.register.bounds));
        let configured = self.terms.map(|terms| tenure.deadline(&terms.bounds));
        registered.into_iter().chain(configured).min()
    }

    /// Whether this agent's tenure is valid: by the time, and as long as it froze on no version. A holder that was overdue
    /// answers a candidate, and its answer alone may stand for all that it acknowledged; a hold that reaches it later must
    /// not make it writable again. A renewal does, because it makes the version void on which it froze.
    pub fn valid(&self) -> bool {
        active(Mutation::DeadlineDropped) && self.tenure.is_some()
            || self.deadline().is_some_and(|deadline| self.now < deadline)
                && (self.promise.is_none() || active(Mutation::FrozenHolderReturns) || active(Mutation::FreezeByHolder))
    }

    /// Whether PostgreSQL died under this holder and another instance can take over: a replica is ready sooner than crash
    /// recovery. The Lease is given back then, and PostgreSQL must not be started meanwhile.
    pub fn gives_up(&self) -> bool {
        *self.engine == EngineState::Stopped
            && !self.restarting
            && self.tenure.is_some_and(|tenure| tenure.served)
            && self.terms.is_some_and(|terms| terms.failover && terms.instances.len() > 1)
    }
}

impl Tenure {
    /// When PostgreSQL has to be stopped.
    pub fn deadline(&self, bounds: &LeaseBounds) -> Boot {
        let renewed = self.renewed + Duration::from_secs(u64::from(bounds.renew_deadline));
        self.held_until.map_or(renewed, |held| held.max(renewed))
    }
}

/// What the user wants, as far as the election is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Names of all wanted instances.
    pub instances: Vec<String>,
    /// Durability as decided.
    pub durability: Durability,
    /// k of ANY k.
    pub k: u32,
    /// Bounds of the Lease.
    pub bounds: LeaseBounds,
    /// Whether another instance may take over from a holder that did not release.
    pub failover: bool,
    /// With `Async`: how many bytes behind the last known position a new primary may be.
    pub max_lag: u64,
    /// The instance that should be primary.
    pub primary: Option<String>,
    /// Term of the register for which a human accepted that acknowledged writes may be lost.
    pub accept_loss: Option<i64>,
}

/// What is on the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Not looked yet, or it cannot be told: nothing may be begun.
    Unknown,
    /// No data directory.
    Empty,
    /// A bootstrap that was completed but not yet adopted.
    Staged {
        /// Its system identifier.
        system_id: String,
        /// Its member id.
        member: String,
        /// Its timeline: 1, unless it was restored from a backup.
        timeline: u32,
    },
    /// A data directory.
    Present(Member),
}

impl Data {
    /// System identifier, where there is data.
    pub fn system_id(&self) -> Option<&str> {
        match self {
            Self::Staged { system_id, .. } => Some(system_id),
            Self::Present(member) => Some(&member.system_id),
            Self::Unknown | Self::Empty => None,
        }
    }
}

/// A data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: String,
    /// Its system identifier.
    pub system_id: String,
    /// The holder string of the take under which it was writable last; erased before it follows anybody.
    pub proof: Option<String>,
    /// Whether it may answer elections. It goes before a clone or rewind begins, and returns when the copy has caught up
    /// with what the holder reported since.
    pub marker: bool,
    /// Whether it was made to follow (`standby.signal`); a promotion ends that.
    pub standby: bool,
    /// Whether its end is known: a standby that has replayed what it had, or a clean stop.
    pub end_known: bool,
    /// Timelines of its history, its own last.
    pub history: Vec<u32>,
    /// Whether a rewind was tried in vain, so that only a fresh clone helps.
    pub hopeless: bool,
    /// Timeline of its last record.
    pub timeline: u32,
    /// End of its WAL, as far as known.
    pub end: Lsn,
}

/// What PostgreSQL does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineState {
    /// No process of PostgreSQL runs.
    Stopped,
    /// Something is under way.
    Busy(Job),
    /// It runs and takes writes.
    Primary,
    /// It runs and follows.
    Standby {
        /// Term and address that it is configured to follow; None: nobody.
        source: Option<Source>,
        /// Whether it still replays what was on its disk when it started: it reports less than it has.
        replaying: bool,
    },
}

impl EngineState {
    /// Whether it could acknowledge a write now or in a moment.
    pub fn maybe_writable(&self) -> bool {
        matches!(self, Self::Primary | Self::Busy(Job::StartPrimary | Job::Promote | Job::StopPrimary))
    }
}

/// A long act on PostgreSQL; one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// initdb and the first roles, behind a private socket.
    Bootstrap,
    /// Copy of the holder's data directory.
    Clone,
    /// Start that ends writable.
    StartPrimary,
    /// Start that ends following.
    StartStandby,
    /// Promotion to the timeline of the register.
    Promote,
    /// Rewind to the holder's history.
    Rewind,
    /// Stop of a primary.
    StopPrimary,
    /// Stop of a standby.
    StopStandby,
}
