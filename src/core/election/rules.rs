//! The sync rules: whose copies a commit waits for, and how that may change without losing an acknowledged one.
//!
//! Every change is the same four steps, in this order, by the holder only: **add** the new rule to the Lease, **set**
//! PostgreSQL to it, **confirm** by a proof, **drop** the older rules. [`next`] gives the change of the list that is due.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::mutation::{Mutation, active};
use super::register::Register;
use crate::api::agent::Lsn;
use crate::api::spec::Durability;

/// Grace after which a member that left the stream may leave the rule, in seconds, as long as k others remain.
pub const GRACE_SECONDS: u64 = 30;

/// Most rules that stand in the list. Each is a set that an election must hear from, so more would only block it.
const MOST_RULES: usize = 4;

/// A commit waits for any k of these members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Ids of members (data directories).
    pub members: BTreeSet<String>,
    /// How many of them; 0 is `Async`: a commit waits for nobody, and the members are those that may be elected.
    pub k: u32,
}

impl Rule {
    /// Any `k` of `members`.
    pub fn new<T: Into<String>>(members: impl IntoIterator<Item = T>, k: u32) -> Self {
        Self { members: members.into_iter().map(Into::into).collect(), k }
    }

    /// A commit waits for nobody.
    pub fn none() -> Self {
        Self { members: BTreeSet::new(), k: 0 }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.k == 0 {
            return f.write_str("nobody");
        }
        let names: Vec<&str> = self.members.iter().map(String::as_str).collect();
        write!(f, "ANY {} ({})", self.k, names.join(", "))
    }
}

/// A member as the holder sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Name of its instance.
    pub instance: String,
    /// Its id.
    pub member: String,
    /// Whether its agent confirmed, for the present term, that it follows this holder's history. Only then may PostgreSQL
    /// count what it acknowledges.
    pub confirmed: bool,
    /// Whether it may answer elections, as its agent said.
    pub marker: bool,
    /// Whether its walsender streams now.
    pub streaming: bool,
    /// Seconds since it last streamed; 0 while it does.
    pub gone_for: u64,
    /// Whether its instance is to be removed.
    pub leaving: bool,
}

impl Joined {
    /// Whether it could take over: it follows this holder, has all that the holder had when it joined, and stays.
    pub fn ready(&self) -> bool {
        self.counts() && self.marker
    }

    fn counts(&self) -> bool {
        self.confirmed && self.streaming && !self.leaving
    }
}

/// The rule that should be in force, given the one that is.
///
/// Members join as soon as they stream and may be elected, and leave after [`GRACE_SECONDS`] or because their instance is
/// removed, but never so that fewer than k remain: then the rule stays as it is, writes wait, and durability is not
/// lowered silently. For a member that never streamed in this term the shell counts `gone_for` from the term's start.
pub fn wanted(durability: Durability, k: u32, present: &Rule, joined: &[Joined]) -> Rule {
    let k = if durability == Durability::Async { 0 } else { k };
    let needed = usize::try_from(k).unwrap_or(usize::MAX);
    let find = |id: &str| joined.iter().find(|member| member.member == id);
    // Who may not answer elections yet would only be missing in one, and that may be for ever when the holder is lost.
    let fresh: BTreeSet<String> = joined.iter().filter(|m| m.ready()).map(|m| m.member.clone()).collect();
    // A member of which the holder knows nothing stays: unknown is not absent.
    let stays = |id: &&String| {
        active(Mutation::DeadMemberStays)
            || find(id).is_none_or(|m| !m.leaving && (m.streaming || m.gone_for < GRACE_SECONDS))
    };
    let mut members: BTreeSet<String> = present.members.iter().filter(stays).cloned().collect();
    members.extend(fresh);
    if members.len() < needed { present.clone() } else { Rule { members, k } }
}

/// The change of the list that is due, or None. `confirmed` is the rule that is proven to be in force, if any is.
pub fn next(rules: &[Rule], wanted: &Rule, confirmed: Option<&Rule>, joined: &[Joined]) -> Option<Vec<Rule>> {
    let Some(last) = rules.last() else { return Some(vec![wanted.clone()]) };
    if rules.len() > 1 && (confirmed == Some(last) || active(Mutation::RulesDroppedUnconfirmed)) {
        return Some(vec![last.clone()]);
    }
    // Beyond the limit only where the list would stay for ever: its last rule cannot be served, the wanted one can.
    let stuck = !served(last, joined) && served(wanted, joined);
    if last == wanted || (rules.len() >= MOST_RULES && !stuck) {
        return None;
    }
    Some(with(rules, wanted.clone()))
}

/// The list with this rule as the last. The order of the others means nothing, so an equal one is not kept twice.
pub fn with(rules: &[Rule], rule: Rule) -> Vec<Rule> {
    if active(Mutation::RuleReplaced) {
        return vec![rule];
    }
    rules.iter().filter(|other| **other != rule).cloned().chain([rule.clone()]).collect()
}

/// Whether a commit under this rule would return now.
fn served(rule: &Rule, joined: &[Joined]) -> bool {
    let ready = joined.iter().filter(|member| member.counts() && rule.members.contains(&member.member)).count();
    ready >= usize::try_from(rule.k).unwrap_or(usize::MAX)
}

/// A walsender of the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walsender {
    /// Application name of its standby: a member id.
    pub member: String,
    /// Up to where it has sent and its standby has confirmed to have written.
    pub written: Lsn,
    /// Up to where its standby has confirmed to have flushed.
    pub flushed: Lsn,
}

/// What the holder has seen, in this order, since it set PostgreSQL to a rule. Voided by every start of PostgreSQL and by
/// the setting of another rule.
#[derive(Debug, Clone)]
pub struct Evidence<'a> {
    /// Whether a session that was opened after the reload showed the new value.
    pub shown: bool,
    /// Where the WAL ended that was written after that.
    pub position: Lsn,
    /// No CHECKPOINT has completed since commits waited for nobody: only the checkpointer's own reload makes backends wait.
    /// It stays so when another rule is set meanwhile (seen: the second rule was confirmed, and commits still did not wait).
    pub from_empty: bool,
    /// Whether a CHECKPOINT that was asked for after the reload has completed.
    pub checkpointed: bool,
    /// All walsenders, read after that.
    pub walsenders: &'a [Walsender],
    /// Whether a commit has returned, without a warning, that was begun when all of the rest was proven: what a backend
    /// acknowledges later under the older rule lies below it.
    pub committed: bool,
}

/// Whether what was seen proves that all that is acknowledged from now on is on k members of this rule: all but the marker
/// commit, which is to be begun only then.
pub fn ready_for_marker(rule: &Rule, evidence: &Evidence<'_>) -> bool {
    if active(Mutation::ConfirmAssumed) {
        return true;
    }
    if rule.k == 0 {
        return evidence.shown;
    }
    if active(Mutation::MembersUnheard) {
        return evidence.shown && evidence.checkpointed;
    }
    let passed = |sender: &Walsender| sender.written >= evidence.position;
    let flushed = |sender: &&Walsender| rule.members.contains(&sender.member) && sender.flushed >= evidence.position;
    let members: BTreeSet<&str> = evidence.walsenders.iter().filter(flushed).map(|s| s.member.as_str()).collect();
    evidence.shown
        && (!evidence.from_empty || evidence.checkpointed || active(Mutation::NoCheckpoint))
        && (evidence.walsenders.iter().all(passed) || active(Mutation::StaleWalsenderIgnored))
        && members.len() >= usize::try_from(rule.k).unwrap_or(usize::MAX)
}

/// Whether this rule is proven to be in force.
pub fn in_force(rule: &Rule, evidence: &Evidence<'_>) -> bool {
    ready_for_marker(rule, evidence)
        && (rule.k == 0
            || active(Mutation::MembersUnheard)
            || active(Mutation::ConfirmAssumed)
            || evidence.committed
            || active(Mutation::NoMarkerCommit))
}

/// Whether a register's rules are for this holder in this term. A PostgreSQL that outlives its kill is not told of another's:
/// that may wait for nobody, and what was not acknowledged yet would be.
pub fn are_of(register: &Register, holder: &str, term: i64) -> bool {
    active(Mutation::ForeignRuleSet) || register.holder == holder && register.term == term
}

/// What PostgreSQL's `synchronous_standby_names` must say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncSetting {
    /// ANY k; 0 is an empty setting.
    pub k: u32,
    /// Members that count. Where fewer than k have confirmed, a placeholder that matches nobody makes commits wait.
    pub members: Vec<String>,
}

/// A name that no standby has.
pub const NOBODY: &str = "hello-nobody";

/// The setting for the present rule: only members that confirmed this term are listed.
pub fn setting(rule: &Rule, joined: &[Joined]) -> SyncSetting {
    if rule.k == 0 {
        return SyncSetting { k: 0, members: Vec::new() };
    }
    let confirmed = |id: &&String| {
        active(Mutation::ListedUnconfirmed) || joined.iter().any(|member| member.confirmed && member.member == **id)
    };
    let mut members: Vec<String> = rule.members.iter().filter(confirmed).cloned().collect();
    if members.is_empty() && active(Mutation::SettingEmptied) {
        return SyncSetting { k: 0, members };
    }
    if members.len() < usize::try_from(rule.k).unwrap_or(usize::MAX) {
        members.push(NOBODY.to_owned());
    }
    SyncSetting { k: rule.k, members }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn joined(member: &str, streaming: bool, gone_for: u64) -> Joined {
        Joined {
            instance: member.into(),
            member: member.into(),
            confirmed: true,
            marker: true,
            streaming,
            gone_for,
            leaving: false,
        }
    }

    #[test]
    fn a_new_rule_is_added_and_the_older_ones_go_only_when_it_is_confirmed() {
        let (old, new) = (Rule::new(["a"], 1), Rule::new(["a", "b"], 1));
        let added = next(std::slice::from_ref(&old), &new, Some(&old), &[]).unwrap();
        assert_eq!(added, [old.clone(), new.clone()]);
        assert_eq!(next(&added, &new, Some(&old), &[]), None, "not confirmed: nothing is dropped");
        assert_eq!(next(&added, &new, Some(&new), &[]), Some(vec![new.clone()]));
        assert_eq!(next(std::slice::from_ref(&new), &new, Some(&new), &[]), None);
    }

    #[test]
    fn a_member_that_died_leaves_after_its_grace_if_enough_remain() {
        let present = Rule::new(["a", "b"], 1);
        let dead = |seconds| [joined("a", true, 0), joined("b", false, seconds)];
        assert_eq!(wanted(Durability::Quorum, 1, &present, &dead(GRACE_SECONDS - 1)), present);
        assert_eq!(wanted(Durability::Quorum, 1, &present, &dead(GRACE_SECONDS)), Rule::new(["a"], 1));
        let all_dead = [joined("a", false, 999), joined("b", false, 999)];
        assert_eq!(wanted(Durability::Quorum, 1, &present, &all_dead), present, "writes wait instead");
    }

    #[test]
    fn planned_members_stay_until_k_others_have_joined() {
        let planned = Rule::new(["p2", "p3"], 1);
        assert_eq!(wanted(Durability::Quorum, 1, &planned, &[]), planned);
        assert_eq!(setting(&planned, &[]), SyncSetting { k: 1, members: vec![NOBODY.into()] });
    }

    #[test]
    fn a_member_that_leaves_goes_at_once_but_never_below_k() {
        let present = Rule::new(["a", "b"], 1);
        let mut members = [joined("a", true, 0), joined("b", true, 0)];
        members[1].leaving = true;
        assert_eq!(wanted(Durability::Quorum, 1, &present, &members), Rule::new(["a"], 1));
        assert_eq!(wanted(Durability::Quorum, 2, &Rule::new(["a", "b"], 2), &members), Rule::new(["a", "b"], 2));
    }

    #[test]
    fn a_copy_that_may_not_be_elected_yet_joins_no_rule() {
        for (durability, present) in [(Durability::Quorum, Rule::new(["a"], 1)), (Durability::Async, Rule::none())] {
            let mut fresh = joined("b", true, 0);
            fresh.marker = false;
            assert_eq!(wanted(durability, present.k, &present, std::slice::from_ref(&fresh)), present);
            fresh.marker = true;
            assert!(wanted(durability, present.k, &present, &[fresh]).members.contains("b"));
        }
    }

    #[test]
    fn only_members_that_confirmed_the_term_are_set() {
        let mut member = joined("b", true, 0);
        member.confirmed = false;
        let rule = Rule::new(["a", "b"], 1);
        assert_eq!(setting(&rule, &[member.clone()]).members, [NOBODY]);
        assert_eq!(setting(&rule, &[joined("a", true, 0), member]).members, ["a"]);
    }

    prop_compose! {
        fn any_joined()(
            member in "[a-d]", confirmed: bool, marker: bool, streaming: bool, gone in 0..60_u64, leaving: bool,
        ) -> Joined {
            Joined { instance: member.clone(), member, confirmed, marker, streaming, gone_for: if streaming { 0 } else { gone }, leaving }
        }
    }

    proptest! {
        #[test]
        fn the_wanted_rule_is_stable_and_never_too_small(
            k in 1..4_u32,
            present in proptest::collection::btree_set("[a-d]", 0..4),
            members in proptest::collection::vec(any_joined(), 0..5),
        ) {
            let present = Rule { k: if present.is_empty() { 0 } else { k.min(u32::try_from(present.len()).unwrap()) }, members: present };
            let rule = wanted(Durability::Quorum, k, &present, &members);
            prop_assert!(rule == present || rule.members.len() >= usize::try_from(rule.k).unwrap());
            prop_assert_eq!(wanted(Durability::Quorum, k, &rule, &members), rule);
        }

        #[test]
        fn the_list_never_loses_a_rule_before_the_last_is_confirmed(
            sizes in proptest::collection::vec(1..4_u32, 1..4), confirmed in proptest::option::of(1..4_u32), want in 1..4_u32,
        ) {
            let rule = |k: u32| Rule::new((0..k).map(|i| format!("m{i}")), 1);
            let mut rules: Vec<Rule> = sizes.into_iter().map(rule).collect();
            rules.dedup();
            let confirmed = confirmed.map(rule);
            if let Some(list) = next(&rules, &rule(want), confirmed.as_ref(), &[]) {
                let dropped = rules.iter().any(|old| !list.contains(old));
                prop_assert!(!dropped || confirmed.as_ref() == rules.last());
            }
        }
    }
}
