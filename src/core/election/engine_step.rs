//! What to do with PostgreSQL.

use super::mutation::{Mutation, active};
use super::register::Register;
use super::view::{Data, EngineState, History, Member, Seen, View};

/// Whom to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Term of the holder.
    pub term: i64,
    /// Name of its instance, for the verification of its certificate.
    pub instance: String,
    /// Its address, from the Lease.
    pub address: String,
}

/// What to do with PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineStep {
    /// Nothing.
    Keep,
    /// Nothing can be done; the reason is for people.
    Refuse(String),
    /// Kill every process of PostgreSQL, completely and at once.
    Kill(&'static str),
    /// Stop PostgreSQL in order: cut clients, fast shutdown.
    Stop(&'static str),
    /// Begin a planned hand-over to this instance: note it in the tenure, then stop in order.
    HandOver(String),
    /// Make the first data directory, in the staging folder.
    Bootstrap,
    /// The staged bootstrap is published: write this holder proof, then make it the data directory.
    AdoptStaged(String),
    /// Remove a staged bootstrap that was never published.
    DiscardStaged,
    /// Write the holder proof beside the data. Only after the take succeeded.
    WriteProof(String),
    /// Copy the holder's data directory. `member` is the planned id of a first clone.
    Clone {
        /// From whom.
        source: Source,
        /// Id planned by the register; None: make a new one.
        member: Option<String>,
    },
    /// Take the marker away, erase the proof, rewind to the holder's history under a new member id. When it fails, the
    /// member is hopeless.
    Rewind(Source),
    /// Start PostgreSQL writable.
    StartPrimary,
    /// Start PostgreSQL as a standby, which follows this source, or nobody.
    StartStandby(Option<Source>),
    /// Promote the standby to exactly this timeline: cut its clients first.
    Promote(u32),
    /// Point the running standby at this source; at nobody, it is frozen.
    Follow(Option<Source>),
}

/// Decides what to do with PostgreSQL. Total: every view has an answer.
pub fn engine_step(view: &View<'_>) -> EngineStep {
    let holding = holding(view);
    // The fence comes before everything else: not even a clean stop may outlast the deadline.
    if view.engine.maybe_writable() && !holding {
        return EngineStep::Kill("it is writable and this agent holds no valid Lease");
    }
    if let EngineState::Busy(_) = view.engine {
        return EngineStep::Keep;
    }
    if view.stopping {
        return match view.engine {
            EngineState::Stopped => EngineStep::Keep,
            _ => EngineStep::Stop("this agent ends"),
        };
    }
    // Nothing is begun before the configuration was read.
    let (Some(seen), Some(_)) = (view.lease, view.terms) else { return EngineStep::Keep };
    if holding { as_holder(view, seen) } else { as_follower(view, seen) }
}

/// Whether this agent holds the Lease, as far as it can know, at this moment.
fn holding(view: &View<'_>) -> bool {
    let Some(tenure) = view.tenure else { return false };
    view.valid()
        && view.lease.is_some_and(|seen| {
            !seen.register.released() && seen.register.holder == view.me.holder() && seen.register.term == tenure.term
        })
}

fn as_holder(view: &View<'_>, seen: &Seen) -> EngineStep {
    let register = &seen.register;
    match (view.data, view.engine) {
        (Data::Unknown, _) | (_, EngineState::Busy(_)) => EngineStep::Keep,
        (_, EngineState::Primary) => hand_over(view).map_or(EngineStep::Keep, EngineStep::HandOver),
        (Data::Empty, _) => match register.system_id {
            None => EngineStep::Bootstrap,
            Some(_) => EngineStep::Refuse("this instance holds the Lease of a cluster with data, and has none".into()),
        },
        (Data::Staged { system_id, .. }, _) => match &register.system_id {
            Some(published) if published == system_id => EngineStep::AdoptStaged(register.holder.clone()),
            Some(_) => EngineStep::DiscardStaged,
            // The next renewal publishes it.
            None => EngineStep::Keep,
        },
        (Data::Present(member), _) if foreign(member, register) => EngineStep::Refuse(foreign_data()),
        // The tenure ends: a release is due, or was sent and may arrive at any time. It is not started again.
        (_, EngineState::Stopped) if ends(view) => EngineStep::Keep,
        (Data::Present(member), engine) => {
            if member.proof.as_deref() != Some(register.holder.as_str()) {
                return EngineStep::WriteProof(register.holder.clone());
            }
            match engine {
                EngineState::Stopped if member.standby => EngineStep::StartStandby(None),
                EngineState::Stopped => EngineStep::StartPrimary,
                EngineState::Standby { source: Some(_), .. } => EngineStep::Follow(None),
                EngineState::Standby { .. } => EngineStep::Promote(register.timeline),
                EngineState::Primary | EngineState::Busy(_) => EngineStep::Keep,
            }
        }
    }
}

fn ends(view: &View<'_>) -> bool {
    !active(Mutation::StartedAfterRelease)
        && (view.gives_up() || view.tenure.is_some_and(|tenure| tenure.ending.is_some()))
}

/// To whom the user wants the primary to move, when that instance is ready for it.
fn hand_over(view: &View<'_>) -> Option<String> {
    let wish = view.terms?.primary.as_ref().filter(|wish| **wish != view.me.instance)?;
    // The present rule must be confirmed, else the choice after the release could not be made; and it names the wished one.
    let rule = view.lease.and_then(|seen| seen.register.rule()).filter(|rule| Some(*rule) == view.confirmed)?;
    let named = |member: &str| rule.k == 0 || rule.members.contains(member);
    let mut ready = view.joined.iter().filter(|m| m.instance == *wish && m.ready() && named(&m.member));
    ready.next().map(|_| wish.clone())
}

fn as_follower(view: &View<'_>, seen: &Seen) -> EngineStep {
    let register = &seen.register;
    // The promise: it follows nobody, and begins nothing, until it has read another version.
    let source = if view.promise.is_some() { None } else { source(view, register) };
    match (view.data, view.engine) {
        (Data::Unknown, _) | (_, EngineState::Busy(_) | EngineState::Primary) => EngineStep::Keep,
        (Data::Empty, _) => match source {
            Some(source) if register.established > 0 => {
                EngineStep::Clone { source, member: register.planned.get(&view.me.instance).cloned() }
            }
            _ => EngineStep::Keep,
        },
        (Data::Staged { system_id, .. }, _) => match &register.system_id {
            Some(published) if published != system_id => EngineStep::DiscardStaged,
            None if active(Mutation::StagedDiscarded) => EngineStep::DiscardStaged,
            // It is the newest copy there is, or its publication may still be under way: it waits for the Lease.
            _ => EngineStep::Keep,
        },
        (Data::Present(member), _) if foreign(member, register) => EngineStep::Refuse(foreign_data()),
        (Data::Present(member), EngineState::Stopped) => stopped(view, register, member, source),
        (Data::Present(member), EngineState::Standby { source: present, replaying }) => {
            if view.promise.is_some() {
                return if present.is_some() { EngineStep::Follow(None) } else { EngineStep::Keep };
            }
            match source {
                Some(source) if member.hopeless || present.as_ref() == Some(&source) && view.cannot_follow => {
                    EngineStep::Stop("only a fresh clone helps this replica")
                }
                Some(source) if present.as_ref() == Some(&source) => EngineStep::Keep,
                Some(_) if *replaying => EngineStep::Keep,
                // What is on its way from the former holder may still be flushed: the receiver goes first, and the end is
                // read again before it is compared.
                Some(_) if present.is_some() && !active(Mutation::EndComparedLive) => EngineStep::Follow(None),
                Some(source) => attach(view, member, source, |source| EngineStep::Follow(Some(source))),
                // The holder released or went: keep on receiving what is still under way.
                None => EngineStep::Keep,
            }
        }
    }
}

fn stopped(view: &View<'_>, register: &Register, member: &Member, source: Option<Source>) -> EngineStep {
    let wrote = member.proof.as_deref();
    if wrote.is_some_and(|proof| register.proven_by(proof)) {
        // It wrote as the last holder: it waits for the Lease, and follows nobody before another has taken it.
        return EngineStep::Keep;
    }
    match source {
        Some(source) if hopeless(view, member) => EngineStep::Clone { source, member: None },
        // What a rewind left half done is not started.
        None if member.hopeless => EngineStep::Keep,
        // It recovers first, so that its end is known; an earlier primary that crashed is rewound, which recovers it too.
        _ if !member.end_known && wrote.is_none() => EngineStep::StartStandby(None),
        Some(source) => attach(view, member, source, |source| EngineStep::StartStandby(Some(source))),
        None if wrote.is_some() || !member.standby => EngineStep::Keep,
        None => EngineStep::StartStandby(None),
    }
}

/// Before a receiver starts, the end of this WAL is compared with the holder's history: a standby beyond the fork would
/// acknowledge positions of the wrong history.
fn attach(view: &View<'_>, member: &Member, source: Source, follow: impl FnOnce(Source) -> EngineStep) -> EngineStep {
    if hopeless(view, member) {
        return EngineStep::Stop("only a fresh clone helps this replica");
    }
    let Some(history) = view.fork.filter(|history| told(view, history, &source)) else { return EngineStep::Keep };
    if active(Mutation::DivergedAttached) {
        return follow(source);
    }
    let stopped = view.engine == &EngineState::Stopped;
    if member.end_known && history.contains(member.timeline, member.end) {
        follow(source)
    } else if stopped {
        EngineStep::Rewind(source)
    } else if !member.end_known {
        // It is on its way to a standstill.
        EngineStep::Keep
    } else {
        EngineStep::Stop("its WAL goes beyond the fork: it has to be rewound")
    }
}

/// Whether only a fresh clone helps.
fn hopeless(view: &View<'_>, member: &Member) -> bool {
    member.hopeless || view.cannot_follow && member.proof.is_none()
}

/// Whether this is the history of the holder's own timeline: before its promotion it would tell the former one, without an
/// end.
fn told(view: &View<'_>, history: &History, source: &Source) -> bool {
    let own = history.forks.last().map(|(timeline, _)| *timeline);
    history.term == source.term
        && (own == view.lease.map(|seen| seen.register.timeline) || active(Mutation::EarlyHistoryBelieved))
}

/// Whom the register says to follow: a holder that is not this agent and has published data.
fn source(view: &View<'_>, register: &Register) -> Option<Source> {
    let instance = register.holder_instance()?;
    let other = instance != view.me.instance;
    (other && !register.released() && register.system_id.is_some() && !register.address.is_empty()).then(|| Source {
        term: register.term,
        instance: instance.to_owned(),
        address: register.address.clone(),
    })
}

fn foreign(member: &Member, register: &Register) -> bool {
    register.system_id.as_ref() != Some(&member.system_id)
}

fn foreign_data() -> String {
    "the volume holds the data of another cluster (its system identifier is not this cluster's); it is left as it is: move the volume away or delete its claim".into()
}
