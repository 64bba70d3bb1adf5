//! What to do with PostgreSQL.

use super::view::{Data, EngineState, Member, Seen, View};

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
    /// Make the first data directory, in the staging folder.
    Bootstrap,
    /// The staged bootstrap is published: write this holder proof, then make it the data directory.
    AdoptStaged(String),
    /// Remove a staged bootstrap that was never published.
    DiscardStaged,
    /// This replica can never catch up with a holder that writes: remove its data, so that it is cloned anew. Its marker
    /// goes first.
    DiscardReplica,
    /// Write the holder proof beside the data. Only after the take succeeded.
    WriteProof(String),
    /// Copy the holder's data directory. `member` is the planned id of a first clone.
    Clone {
        /// From whom.
        source: Source,
        /// Id planned by the register; None: make a new one.
        member: Option<String>,
    },
    /// Start PostgreSQL writable.
    StartPrimary,
    /// Start PostgreSQL as a standby. Erases the holder proof first.
    StartStandby(Option<Source>),
    /// Point the running standby elsewhere.
    Retarget(Source),
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
    let Some(seen) = view.lease else { return EngineStep::Keep };
    if holding { as_holder(view, seen) } else { as_follower(view, seen) }
}

/// Whether this agent holds the Lease, as far as it can know, at this moment.
fn holding(view: &View<'_>) -> bool {
    let (Some(tenure), Some(terms)) = (view.tenure, view.terms) else { return false };
    tenure.valid(view.now, &terms.bounds)
        && view.lease.is_some_and(|seen| {
            !seen.register.released() && seen.register.holder == view.me.holder() && seen.register.term == tenure.term
        })
}

fn as_holder(view: &View<'_>, seen: &Seen) -> EngineStep {
    match (view.data, view.engine) {
        (Data::Unknown, _) | (_, EngineState::Primary | EngineState::Busy(_)) => EngineStep::Keep,
        (_, EngineState::Standby { .. }) => EngineStep::Refuse(
            "this instance holds the Lease but runs as a replica; promotion is not possible here".into(),
        ),
        (Data::Empty, EngineState::Stopped) => match seen.register.system_id {
            None => EngineStep::Bootstrap,
            Some(_) => EngineStep::Refuse("this instance holds the Lease of a cluster with data, and has none".into()),
        },
        (Data::Staged { system_id, .. }, EngineState::Stopped) => match &seen.register.system_id {
            Some(published) if published == system_id => EngineStep::AdoptStaged(seen.register.holder.clone()),
            Some(_) => EngineStep::DiscardStaged,
            // The next renewal publishes it.
            None => EngineStep::Keep,
        },
        (Data::Present(member), EngineState::Stopped) => {
            if foreign(member, seen) {
                EngineStep::Refuse(foreign_data())
            } else if member.proof.as_deref() == Some(seen.register.holder.as_str()) {
                EngineStep::StartPrimary
            } else {
                EngineStep::WriteProof(seen.register.holder.clone())
            }
        }
    }
}

fn as_follower(view: &View<'_>, seen: &Seen) -> EngineStep {
    let source = source(view, seen);
    match (view.data, view.engine) {
        (Data::Unknown, _) | (_, EngineState::Busy(_) | EngineState::Primary) => EngineStep::Keep,
        (Data::Empty, _) => match source {
            Some(source) if seen.register.established > 0 => {
                EngineStep::Clone { source, member: seen.register.planned.get(&view.me.instance).cloned() }
            }
            _ => EngineStep::Keep,
        },
        (Data::Staged { system_id, .. }, _) => match &seen.register.system_id {
            // It is the newest copy there is: it waits for the Lease.
            Some(published) if published == system_id => EngineStep::Keep,
            _ => EngineStep::DiscardStaged,
        },
        (Data::Present(member), _) if foreign(member, seen) => EngineStep::Refuse(foreign_data()),
        // Only data that no proof calls the last holder's, and only while somebody holds the newer one.
        (Data::Present(member), EngineState::Standby { .. })
            if view.cannot_follow && member.proof.is_none() && source.is_some() =>
        {
            EngineStep::Stop("the WAL that this replica needs is gone: it is cloned anew")
        }
        (Data::Present(member), EngineState::Stopped)
            if view.cannot_follow && member.proof.is_none() && source.is_some() =>
        {
            EngineStep::DiscardReplica
        }
        (Data::Present(member), EngineState::Stopped) => match (&member.proof, source) {
            // It wrote as the last holder and may continue when the Lease is free.
            (Some(proof), _) if seen.register.proven_by(proof) => EngineStep::Keep,
            (Some(_), Some(_)) => EngineStep::Refuse(
                "this instance was the primary in an earlier term and another one is now: its data may have diverged"
                    .into(),
            ),
            // It wrote as a holder, and there is nobody to follow: by its proof it may still turn out to be the last one's data.
            (Some(_), None) => EngineStep::Keep,
            (None, source) => EngineStep::StartStandby(source),
        },
        (Data::Present(_), EngineState::Standby { source: present }) => match source {
            Some(source) if present.as_ref() != Some(&source) => EngineStep::Retarget(source),
            _ => EngineStep::Keep,
        },
    }
}

/// Whom the register says to follow: a holder that is not this agent and has published data.
fn source(view: &View<'_>, seen: &Seen) -> Option<Source> {
    let register = &seen.register;
    let instance = register.holder_instance()?;
    let other = instance != view.me.instance;
    (other && !register.released() && register.system_id.is_some() && !register.address.is_empty()).then(|| Source {
        term: register.term,
        instance: instance.to_owned(),
        address: register.address.clone(),
    })
}

fn foreign(member: &Member, seen: &Seen) -> bool {
    seen.register.system_id.as_ref() != Some(&member.system_id)
}

fn foreign_data() -> String {
    "the volume holds the data of another cluster (its system identifier is not this cluster's); it is left as it is: move the volume away or delete its claim".into()
}
