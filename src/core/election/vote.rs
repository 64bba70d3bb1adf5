//! What a member answers to a candidate: the freeze, and what it says of its data.
//!
//! The promise of a freeze on version X: *I acknowledge nothing more until I have read the Lease, by a consistent GET sent
//! after the promise was persisted, at a version other than X.* Then no write conditional on X can succeed any more.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::mutation::{Mutation, active};
use super::register::Register;
use super::view::{Boot, Data, EngineState, Member, View};
use crate::api::agent::Lsn;

/// What a member promised, persisted before it is answered. Promises stand side by side, one for each version: a request
/// that comes late must not replace the promise for a later version, or a read of that version would free the member
/// while its answer for that very version counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Promise {
    /// The versions X of the Lease; never empty.
    pub versions: BTreeSet<String>,
}

/// A read of the Lease, as far as promises are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read<'a> {
    /// The version that it showed.
    pub version: &'a str,
    /// Whether the GET was consistent and sent after the promise was persisted. Watches and caches never are.
    pub after_promise: bool,
}

impl Promise {
    /// What is promised when a freeze on `version` is added to what stands.
    pub fn with(standing: Option<&Self>, version: &str) -> Self {
        let mut versions = standing.map(|promise| promise.versions.clone()).unwrap_or_default();
        if active(Mutation::PromiseOverwritten) {
            versions.clear();
        }
        versions.insert(version.to_owned());
        Self { versions }
    }

    /// What still stands after this read: all of it, or at most the promise for the very version that was read.
    pub fn after(self, read: Read<'_>) -> Option<Self> {
        if !read.after_promise && !active(Mutation::LiftedByStaleRead) {
            return Some(self);
        }
        self.versions.contains(read.version).then(|| Self { versions: BTreeSet::from([read.version.to_owned()]) })
    }

    /// Whether it was promised for this version.
    pub fn stands(&self, version: &str) -> bool {
        self.versions.contains(version)
    }
}

/// What a member that froze says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Name of its instance.
    pub instance: String,
    /// The version X on which it froze.
    pub version: String,
    /// Its member id.
    pub member: String,
    /// System identifier of its data.
    pub system_id: String,
    /// The holder proof beside its data.
    #[serde(default)]
    pub proof: Option<String>,
    /// Timelines in the history of its data, its own last.
    pub history: Vec<u32>,
    /// Timeline of the last valid record on its disk.
    pub timeline: u32,
    /// End of the last valid record on its disk.
    pub end: Lsn,
    /// How much of that is still to be replayed.
    #[serde(default)]
    pub backlog: u64,
    /// Whether it must first recover from a crash (a holder that was killed).
    #[serde(default)]
    pub must_recover: bool,
    /// Whether its Pod is being drained.
    #[serde(default)]
    pub draining: bool,
    /// Whether one of its volumes is full, so that it would take no writes.
    #[serde(default)]
    pub full: bool,
}

impl Answer {
    /// Where its WAL ends; ordered by timeline first, because a later timeline forked from acknowledged history.
    pub fn position(&self) -> (u32, Lsn) {
        (if active(Mutation::RankedWithoutTimeline) { 0 } else { self.timeline }, self.end)
    }
}

/// Whether a copy that has lost its marker may have it again: it has flushed what the holder reported, in a Lease that was
/// read (`read_since`) after the marker went, on the timeline on which that holder writes.
pub fn marker_returns(register: &Register, read_since: bool, timeline: u32, flushed: Lsn) -> bool {
    active(Mutation::MarkerTooEarly)
        || read_since && !register.released() && timeline == register.timeline && flushed >= register.end
}

/// Why a member does not answer a freeze; to the candidate it is as good as absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NoAnswer {
    /// It holds the Lease and counts itself valid.
    Holder,
    /// It promised the holder to answer no freeze for a while.
    Bound,
    /// It has no data, or data that may not answer: a clone or rewind is under way or has not caught up since.
    NoMarker,
    /// It is not where it can be asked: it still replays its own WAL after a start, and would report less than it has.
    Replaying,
    /// Something is under way on its PostgreSQL.
    Busy,
}

/// Whether a member may promise a freeze now. When it may, the shell persists the [`Promise`], stops the WAL receiver and
/// has seen it gone, asks this again, and only then reads its position and answers.
pub fn may_freeze<'a>(view: &View<'a>) -> Result<&'a Member, NoAnswer> {
    if counts_itself_valid(view) && !active(Mutation::FreezeByHolder) {
        return Err(NoAnswer::Holder);
    }
    if view.bound_until.is_none_or(|until| view.now < until) && !active(Mutation::FreezeWhileBound) {
        return Err(NoAnswer::Bound);
    }
    let Data::Present(member) = view.data else { return Err(NoAnswer::NoMarker) };
    if !member.marker && !active(Mutation::MarkerIgnored) {
        return Err(NoAnswer::NoMarker);
    }
    match view.engine {
        EngineState::Busy(_) => Err(NoAnswer::Busy),
        EngineState::Standby { .. } if replays(view) && !active(Mutation::ReplayingAnswered) => {
            Err(NoAnswer::Replaying)
        }
        // A primary without a valid Lease is about to be killed.
        EngineState::Primary if !active(Mutation::FreezeByHolder) => Err(NoAnswer::Busy),
        EngineState::Standby { .. } | EngineState::Stopped | EngineState::Primary => Ok(member),
    }
}

/// What a member that froze on `version` answers. `backlog` (bytes still to be replayed) and `draining` are the shell's, as is
/// whether a volume is full.
pub fn answer(view: &View<'_>, member: &Member, version: &str, backlog: u64, draining: bool) -> Answer {
    Answer {
        instance: view.me.instance.clone(),
        version: version.to_owned(),
        member: member.id.clone(),
        system_id: member.system_id.clone(),
        proof: member.proof.clone(),
        history: member.history.clone(),
        timeline: member.timeline,
        end: member.end,
        backlog,
        must_recover: !(member.end_known || active(Mutation::ReplayingAnswered) && replays(view)),
        draining,
        full: false,
    }
}

fn replays(view: &View<'_>) -> bool {
    matches!(view.engine, EngineState::Standby { replaying: true, .. })
}

/// Whether a member may promise the holder `asker` of `term` to answer no freeze and take no Lease for a while. A member that
/// froze refuses: its answer may already be in a ballot.
pub fn may_hold(view: &View<'_>, asker: &str, term: i64) -> Result<(), NoAnswer> {
    if view.promise.is_some() && !active(Mutation::HoldByFrozen) {
        return Err(NoAnswer::Bound);
    }
    let known = view
        .lease
        .is_some_and(|seen| !seen.register.released() && seen.register.holder == asker && seen.register.term == term);
    // It knows of another holder, or of none: the asker may be a deposed one.
    if known { Ok(()) } else { Err(NoAnswer::Busy) }
}

fn counts_itself_valid(view: &View<'_>) -> bool {
    view.valid()
}

/// Whether this answer may be counted at all for an election on version `x` of `register`.
pub fn counts(answer: &Answer, register: &Register, x: &str) -> bool {
    answer.version == x && Some(&answer.system_id) == register.system_id.as_ref()
}

/// From when on a member that just started may freeze or take: a hold that it gave before is kept on the same boot of the
/// machine; when that cannot be known, it is bound by the longest that it could have given.
pub fn bound_after_start(persisted: Option<Boot>, same_boot: bool, started: Boot, longest: Boot) -> Boot {
    match persisted {
        None => started,
        Some(until) if same_boot => until,
        Some(_) => started + longest,
    }
}
