//! When the API server is away: the holder asks the members for `hold(D)`, a promise to answer no freeze and to take no
//! Lease for D, and stays valid for as long as these promises make an election impossible.

use std::collections::BTreeMap;
use std::time::Duration;

use super::mutation::{Mutation, active};
use super::register::Register;
use super::rules::Rule;
use super::view::{Boot, STOP_BUDGET};

/// D of `hold(D)`.
pub const HOLD: Duration = Duration::from_secs(10);

/// Rates of clocks differ by up to 1%, twice.
const RATE: f64 = 0.98;

/// Until when a promise that was asked for at `sent` counts: on the holder's own clock, from before it was sent, shortened
/// by the clocks' rates and by the time that a stop takes.
pub fn counts_until(sent: Boot) -> Boot {
    if active(Mutation::HoldToWrongEnd) {
        return sent + HOLD * 2;
    }
    (sent + HOLD.mul_f64(RATE)).saturating_sub(STOP_BUDGET)
}

/// [`extended_until`] for every register that may be the present one: the one that was read, and each that was sent
/// conditional on it with an outcome that is not known. A rule that such a write drops blocks no election.
pub fn extended_for<'a>(
    registers: impl IntoIterator<Item = &'a Register>,
    grants: &BTreeMap<String, Boot>,
) -> Option<Boot> {
    let each: Option<Vec<Boot>> = registers.into_iter().map(|register| extended_until(register, grants)).collect();
    each?.into_iter().min()
}

/// Until when the promises make an election impossible; None when they do not. `grants` holds for each member the moment
/// to which its promise counts. A write of the rules voids all of them: the shell clears `grants` then.
///
/// An election must satisfy every rule, so it is enough that it cannot satisfy one.
pub fn extended_until(register: &Register, grants: &BTreeMap<String, Boot>) -> Option<Boot> {
    let asynchronous = register.asynchronous();
    register.rules.iter().filter_map(|rule| if asynchronous { all(rule, grants) } else { enough(rule, grants) }).max()
}

/// Until when k of a rule's members are bound, so that the rest are fewer than n - k + 1. A rule that waits for nobody
/// blocks no election while there are others.
fn enough(rule: &Rule, grants: &BTreeMap<String, Boot>) -> Option<Boot> {
    let k = usize::try_from(rule.k).ok().filter(|k| *k > 0)?;
    let k = if active(Mutation::HoldTooFew) { k - 1 } else { k };
    if k == 0 {
        return Some(grants.values().max().copied().unwrap_or(Boot::from_secs(1 << 30)));
    }
    let mut until: Vec<Boot> = rule.members.iter().filter_map(|member| grants.get(member).copied()).collect();
    until.sort_unstable();
    until.len().checked_sub(k).and_then(|at| until.get(at)).copied()
}

/// `Async`: until when every member that could be elected is bound; for ever when there is none (the volume is the fence).
fn all(rule: &Rule, grants: &BTreeMap<String, Boot>) -> Option<Boot> {
    let until: Option<Vec<Boot>> = rule.members.iter().map(|member| grants.get(member).copied()).collect();
    Some(until?.into_iter().min().unwrap_or(Boot::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::spec::Durability;

    fn register(rules: Vec<Rule>) -> Register {
        Register { rules, ..Register::initial(vec!["a".into(), "b".into(), "c".into()], Durability::Quorum) }
    }

    fn grants(list: &[(&str, u64)]) -> BTreeMap<String, Boot> {
        list.iter().map(|(member, seconds)| ((*member).to_owned(), Boot::from_secs(*seconds))).collect()
    }

    #[test]
    fn k_promises_of_one_rule_are_enough_under_quorum() {
        let one = register(vec![Rule::new(["b", "c"], 1)]);
        assert_eq!(extended_until(&one, &grants(&[("c", 9)])), Some(Boot::from_secs(9)));
        assert_eq!(extended_until(&one, &grants(&[("b", 7), ("c", 9)])), Some(Boot::from_secs(9)));
        assert_eq!(extended_until(&one, &grants(&[("x", 9)])), None, "not of the rule");
        let two = register(vec![Rule::new(["b", "c", "d"], 2)]);
        assert_eq!(extended_until(&two, &grants(&[("c", 9)])), None);
        assert_eq!(extended_until(&two, &grants(&[("b", 5), ("c", 9), ("d", 7)])), Some(Boot::from_secs(7)));
    }

    #[test]
    fn under_async_every_member_must_promise_and_a_lone_instance_goes_on() {
        let pair = register(vec![Rule::new(["b", "c"], 0)]);
        assert_eq!(extended_until(&pair, &grants(&[("c", 9)])), None);
        assert_eq!(extended_until(&pair, &grants(&[("b", 5), ("c", 9)])), Some(Boot::from_secs(5)));
        assert_eq!(extended_until(&register(vec![Rule::none()]), &grants(&[])), Some(Boot::MAX));
    }

    #[test]
    fn a_rule_that_waits_for_nobody_blocks_no_election_beside_one_that_does() {
        let mixed = register(vec![Rule::new(["b", "c"], 1), Rule::none()]);
        assert_eq!(extended_until(&mixed, &grants(&[])), None);
    }

    #[test]
    fn a_promise_counts_from_before_it_was_sent_less_the_clocks_and_the_stop() {
        assert_eq!(counts_until(Boot::from_secs(100)), Boot::from_millis(107_800));
    }
}
