//! The conditions Reconciling and Stalled, which tools read that know nothing of databases (kstatus: Helm, Flux): there only while
//! they are true, and never both.

use super::Verdict;
use super::writes::{DISK_FULL, ELECTION_BLOCKED};
use crate::core::plan::DATA_MISSING;
use crate::core::world::{Trouble, World};

/// Troubles that do not pass by themselves: somebody has to write or do something.
const NEEDS_SOMEBODY: [&str; 6] =
    ["Invalid", "SpecErased", "UpgradeUnsupported", "ScalingRefused", DATA_MISSING, DISK_FULL];

/// Seconds after which any other trouble counts as one that does not pass.
const PATIENCE: i64 = 300;

/// Stalled, or Reconciling, or neither.
pub(super) fn for_tools(
    world: &World,
    trouble: Option<&Trouble>,
    progressing: &Verdict,
    writes: &Verdict,
) -> Option<Verdict> {
    let verdict = |kind, reason: &str, sentence: &str| {
        Some(Verdict { kind, holds: true, reason: reason.into(), sentence: sentence.into() })
    };
    if writes.reason == ELECTION_BLOCKED {
        return verdict("Stalled", &writes.reason, &writes.sentence);
    }
    match trouble {
        Some(trouble) if NEEDS_SOMEBODY.contains(&trouble.reason.as_str()) || lasts(world) => {
            verdict("Stalled", &trouble.reason, &trouble.sentence)
        }
        // It is tried again until then.
        Some(trouble) => verdict("Reconciling", &trouble.reason, &trouble.sentence),
        None if progressing.holds => verdict("Reconciling", &progressing.reason, &progressing.sentence),
        None => None,
    }
}

/// Whether something has been wrong for long.
fn lasts(world: &World) -> bool {
    let mut before = world.object.status.iter().flat_map(|status| &status.conditions);
    before
        .find(|condition| condition.type_ == "Degraded" && condition.status == "True")
        .is_some_and(|since| world.now.as_second().saturating_sub(since.last_transition_time.0.as_second()) >= PATIENCE)
}
