//! The choice: given the answers that froze on one version, who may take the Lease, and who of them should.

use std::cmp::Reverse;

use super::mutation::{Mutation, active};
use super::register::Register;
use super::rules::Rule;
use super::vote::{Answer, counts};
/// What a candidate does with its ballot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Take the Lease.
    Take,
    /// So many others should rather; stand back a moment for each, then begin anew.
    StandBack {
        /// How many.
        better: u32,
        /// Whether this one may as well, should they not be able to (they may hear fewer).
        may: bool,
    },
    /// Nobody who answered may.
    Blocked(Blocked),
}

/// Why nobody may take the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// Members of the rules that did not answer, or whose copies were not enough.
    pub missing: Vec<String>,
    /// In a sentence, with what a human can do.
    pub sentence: String,
}

/// Judges a ballot. `me` names the candidate's own answer by its member id; `x` is the version on which all froze.
///
/// Every eligible answer is judged as a candidate of its own, because the preference is among those that may.
pub fn judge(register: &Register, x: &str, me: &str, answers: &[Answer], max_lag: u64) -> Verdict {
    let answers: Vec<&Answer> = answers.iter().filter(|answer| counts(answer, register, x)).collect();
    let mut able: Vec<&Answer> = answers.iter().copied().filter(|a| may_take(register, a, &answers, max_lag)).collect();
    let wish = register.release.as_ref().and_then(|release| release.wish.as_deref());
    able.sort_by(|a, b| preference(a, wish).cmp(&preference(b, wish)));
    match able.iter().position(|answer| answer.member == me) {
        Some(_) if active(Mutation::AheadCounted) => Verdict::Take,
        Some(0) => Verdict::Take,
        Some(rank) => Verdict::StandBack { better: u32::try_from(rank).unwrap_or(u32::MAX), may: true },
        None if !able.is_empty() => {
            Verdict::StandBack { better: u32::try_from(able.len()).unwrap_or(u32::MAX), may: false }
        }
        None => Verdict::Blocked(blocked(register, &answers)),
    }
}

/// Whether this candidate may take the Lease: it then holds every write that was ever acknowledged.
pub fn may_take(register: &Register, candidate: &Answer, answers: &[&Answer], max_lag: u64) -> bool {
    if !eligible(register, candidate) {
        return false;
    }
    // Its own data is that on which the last holder wrote: it holds everything.
    if register.whole(&candidate.member, candidate.proof.as_deref()) {
        return true;
    }
    // A position that is not known cannot be compared.
    if candidate.must_recover {
        return false;
    }
    if let Some(release) = &register.release
        && release.lsn.is_some_and(|lsn| candidate.position() == (release.timeline, lsn))
    {
        return true;
    }
    let not_ahead: Vec<&&Answer> =
        answers.iter().filter(|answer| !answer.must_recover && not_ahead(answer, candidate)).collect();
    // Somebody not ahead of it has the last holder's own data.
    if not_ahead.iter().any(|answer| register.whole(&answer.member, answer.proof.as_deref())) {
        return true;
    }
    // Asked of the rules, not of the durability that is wanted: it is they under which commits were acknowledged.
    if register.asynchronous() {
        let lag = register.end.0.saturating_sub(candidate.end.0);
        return lag <= max_lag && in_every_rule(register, candidate);
    }
    register.rules.iter().all(|rule| heard(rule, &not_ahead) >= needed(rule))
}

/// Whether this member is the best of those that answered, when a human accepted that what the others have is lost.
pub fn best_of_the_rest(register: &Register, x: &str, me: &str, answers: &[Answer]) -> bool {
    answers
        .iter()
        .filter(|answer| counts(answer, register, x) && eligible(register, answer) && !answer.must_recover)
        .min_by(|a, b| preference(a, None).cmp(&preference(b, None)))
        .is_some_and(|best| best.member == me)
}

fn not_ahead(answer: &Answer, candidate: &Answer) -> bool {
    answer.position() <= candidate.position() || active(Mutation::AheadCounted)
}

/// Its history must contain the established timeline, and it must not be a former primary that has not rejoined: that one
/// may have gone its own way.
fn eligible(register: &Register, candidate: &Answer) -> bool {
    let stale = candidate.proof.as_deref().is_some_and(|proof| !register.proven_by(proof));
    (!stale || active(Mutation::StaleProofElected))
        && (candidate.history.contains(&register.established) || active(Mutation::EstablishedIgnored))
}

/// How many members of a rule must have been heard, so that every k of them intersect: n - k + 1.
pub fn needed(rule: &Rule) -> usize {
    let k = usize::try_from(rule.k).unwrap_or(usize::MAX);
    let slack = if active(Mutation::QuorumOffByOne) { k } else { k.saturating_sub(1) };
    if k == 0 { 0 } else { rule.members.len().saturating_sub(slack) }
}

fn heard(rule: &Rule, answers: &[&&Answer]) -> usize {
    rule.members.iter().filter(|member| answers.iter().any(|answer| answer.member == **member)).count()
}

/// With `Async` only members of the rules: others may never have streamed.
fn in_every_rule(register: &Register, candidate: &Answer) -> bool {
    active(Mutation::OutsiderElected) || register.rules.iter().all(|rule| rule.members.contains(&candidate.member))
}

/// Smaller is better. A replica before a crashed holder, which would first have to recover; then the most advanced, one
/// with room before a full one, the wish among equals, one that stays, the one with the least to replay, and the name, so that all judge alike.
fn preference<'a>(answer: &'a Answer, wish: Option<&str>) -> impl Ord + use<'a> {
    let wished = wish == Some(answer.instance.as_str());
    (
        answer.must_recover,
        Reverse(answer.position()),
        answer.full,
        !wished,
        answer.draining,
        answer.backlog,
        answer.instance.as_str(),
    )
}

fn blocked(register: &Register, answers: &[&Answer]) -> Blocked {
    let absent = |member: &&str| !answers.iter().any(|answer| answer.member == **member);
    let missing: Vec<String> = register.ruled_members().iter().filter(|m| absent(m)).map(|m| (*m).to_owned()).collect();
    let sentence = if missing.is_empty() {
        "no instance that answered has all of the data that was acknowledged".to_owned()
    } else {
        format!(
            "an acknowledged write may be only on {}, which did not answer: bring it back (or the last primary, {}), and the election goes on by itself",
            missing.join(", "),
            register.holder_instance().unwrap_or("unknown"),
        )
    };
    Blocked { missing, sentence }
}
