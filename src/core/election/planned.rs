//! Planned hand-overs, and what is told of a hand-over: to whom, whether one helps at all, and why it happened.

use std::collections::BTreeMap;

use super::register::Register;
use crate::api::agent::{HandOver, HandOverReason};
use crate::engine::postgres::control::Critical;
use crate::engine::postgres::settings;

/// A replica that could take over now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its instance.
    pub instance: String,
    /// Whether one of its volumes is full.
    pub full: bool,
    /// Whether its volumes have room enough for the primary of a full one.
    pub roomy: bool,
}

/// Who is to be primary when another one is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The holder itself, which is what was asked for.
    Present,
    /// This instance.
    To(String),
    /// Nobody can: whom it waits for, in words.
    Nobody(String),
}

/// The choice when somebody asks for another primary: the instance that was named, if it could take over; where none was named,
/// the first by name, one with a full volume last.
pub fn target(asked: Option<&str>, me: &str, candidates: &[Candidate]) -> Target {
    let found = match asked {
        Some(asked) if asked == me => return Target::Present,
        Some(asked) => candidates.iter().find(|candidate| candidate.instance == asked),
        None => candidates.iter().min_by_key(|candidate| (candidate.full, &candidate.instance)),
    };
    found.map_or_else(
        || Target::Nobody(asked.unwrap_or("no replica").to_owned()),
        |candidate| Target::To(candidate.instance.clone()),
    )
}

/// Who should be primary: whom somebody asked for goes before what the configuration says, and one with a full volume takes no
/// writes, so the configuration's wish waits until there is room.
pub fn wish(asked: Option<&str>, configured: Option<&str>, full: &[String]) -> Option<String> {
    let configured = configured.filter(|name| !full.iter().any(|full| full == name));
    asked.or(configured).map(ToOwned::to_owned)
}

/// Whether one of the settings that wait for a restart gets smaller and is one below which no replica may go: each of them keeps
/// the primary's value until that one has gone down, so that a switchover helps nobody and the primary restarts in place.
pub fn waits_for_smaller(pending: &[String], running: Critical, wanted: &BTreeMap<String, String>) -> bool {
    let defaults = settings::defaults();
    running.pairs().into_iter().any(|(name, running)| {
        let wanted = wanted.get(name).or_else(|| defaults.get(name)).and_then(|value| value.parse::<u32>().ok());
        pending.iter().any(|pending| pending == name) && wanted.is_some_and(|wanted| wanted < running)
    })
}

/// Why the Lease was taken, and when that began where the former holder told it.
///
/// `told` is what stands beside the register that was taken; `proven_dead`: the kubelet reported that its holder's container has
/// ended.
pub fn reason_of_take(
    taken: &Register,
    next: &Register,
    accepted_loss: Option<i64>,
    told: Option<&HandOver>,
    proven_dead: bool,
) -> (HandOverReason, Option<String>) {
    let forced = accepted_loss == Some(taken.term)
        && next.rules.len() == 1
        && taken.rules.iter().any(|rule| !next.rules.contains(rule));
    if forced {
        return (HandOverReason::Forced, None);
    }
    // The former holder said why it released, and when it stopped.
    if let Some(told) = told.filter(|told| taken.released() && told.to.is_empty() && told.term == taken.term) {
        return (told.reason, Some(told.started_at.clone()));
    }
    let reason = if taken.holder_instance() == next.holder_instance() {
        HandOverReason::Restart
    } else if proven_dead {
        HandOverReason::AgentDied
    } else {
        HandOverReason::LeaseRanOut
    };
    (reason, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::spec::Durability;
    use crate::core::election::{Release, Rule};

    fn candidate(instance: &str, full: bool) -> Candidate {
        Candidate { instance: instance.into(), full, roomy: !full }
    }

    #[test]
    fn whoever_is_named_or_else_the_first_with_room() {
        let both = [candidate("db-2", true), candidate("db-3", false)];
        let to = |name: &str| Target::To(name.into());
        assert_eq!(target(Some("db-1"), "db-1", &both), Target::Present);
        assert_eq!(target(Some("db-2"), "db-1", &both), to("db-2"), "what a human asks for is done");
        assert_eq!(target(Some("db-4"), "db-1", &both), Target::Nobody("db-4".into()));
        assert_eq!(target(None, "db-1", &both), to("db-3"));
        assert_eq!(target(None, "db-1", &both[..1]), to("db-2"), "better than none: its Pod has to go");
        assert_eq!(target(None, "db-1", &[]), Target::Nobody("no replica".into()));
    }

    #[test]
    fn a_wish_waits_for_room_and_a_command_does_not() {
        let full = ["db-2".to_owned()];
        assert_eq!(wish(None, Some("db-2"), &full), None);
        assert_eq!(wish(None, Some("db-2"), &[]).as_deref(), Some("db-2"));
        assert_eq!(wish(Some("db-2"), Some("db-3"), &full).as_deref(), Some("db-2"));
        assert_eq!(wish(None, None, &[]), None);
    }

    #[test]
    fn only_a_critical_setting_that_waits_and_gets_smaller_is_restarted_in_place() {
        let running = Critical {
            max_connections: 130,
            max_worker_processes: 16,
            max_wal_senders: 32,
            max_prepared_transactions: 10,
            max_locks_per_transaction: 64,
        };
        let wanted = |value: &str| BTreeMap::from([("max_connections".to_owned(), value.to_owned())]);
        let waits = |pending: &str, wanted| waits_for_smaller(&[pending.to_owned()], running, &wanted);
        assert!(waits("max_connections", wanted("90")));
        assert!(!waits("max_connections", wanted("200")), "it gets larger");
        assert!(!waits("shared_buffers", wanted("90")), "another one waits");
        assert!(waits("max_prepared_transactions", BTreeMap::new()), "it goes back to the default");
        assert!(!waits("max_connections", wanted("many")));
    }

    #[test]
    fn the_former_holder_is_believed_about_its_own_release_only() {
        let mut taken = Register::initial(vec!["db-1".into(), "db-2".into()], Durability::Quorum);
        (taken.term, taken.holder, taken.release) = (4, "db-1/u/n1".into(), None);
        let older = Rule::new(["db-2-a"], 1);
        taken.rules = vec![older.clone()];
        let by = |holder: &str, rules: &[&Rule]| Register {
            holder: holder.into(),
            term: 5,
            release: None,
            rules: rules.iter().map(|rule| (*rule).clone()).collect(),
            ..taken.clone()
        };
        let next = by("db-2/v/n1", &[&older]);
        let why = |taken: &Register, next: &Register, loss, told: Option<&HandOver>, dead| {
            reason_of_take(taken, next, loss, told, dead).0
        };
        assert_eq!(why(&taken, &next, None, None, false), HandOverReason::LeaseRanOut);
        assert_eq!(why(&taken, &next, None, None, true), HandOverReason::AgentDied);
        assert_eq!(why(&taken, &by("db-1/u/n2", &[&older]), None, None, true), HandOverReason::Restart);

        let told = HandOver {
            term: 4,
            from: Some("db-1".into()),
            to: String::new(),
            reason: HandOverReason::DiskFull,
            started_at: "2026-11-30T18:00:00Z".into(),
            completed_at: None,
        };
        assert_eq!(why(&taken, &next, None, Some(&told), false), HandOverReason::LeaseRanOut, "it did not release");
        let mut released = taken.clone();
        released.release = Some(Release { timeline: 1, lsn: None, wish: None });
        let told_by = reason_of_take(&released, &next, None, Some(&told), false);
        assert_eq!(told_by, (HandOverReason::DiskFull, Some(told.started_at.clone())));
        let earlier = HandOver { term: 3, ..told };
        assert_eq!(why(&released, &next, None, Some(&earlier), false), HandOverReason::LeaseRanOut);

        let fresh = Rule::new(["db-3-a"], 1);
        assert_eq!(why(&taken, &by("db-2/v/n1", &[&fresh]), Some(4), None, false), HandOverReason::Forced);
        assert_ne!(why(&taken, &by("db-2/v/n1", &[&fresh]), Some(3), None, false), HandOverReason::Forced);
    }
}
