//! The holder's book of the members: who follows it, since when, and who is about to leave.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::peers::Heard;
use super::sql::Walsender;
use crate::api::agent::{Phase, ReplicaReport};
use crate::core::election::planned::Candidate;
use crate::core::election::{Boot, Joined, Register};

/// How long after the begin of a term replicas may take to move to its holder.
const GATHERS: Duration = Duration::from_secs(5);

/// The book, for one term.
#[derive(Debug, Default)]
pub struct Members {
    /// When the term began, on this process's clock.
    began: Boot,
    /// By member id.
    known: BTreeMap<String, Known>,
    /// What the agents said last: by instance.
    heard: BTreeMap<String, Heard>,
    /// Instances that are being removed.
    leaving: BTreeSet<String>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    instance: String,
    confirmed: bool,
    marker: bool,
    streaming: bool,
    last_streamed: Option<Boot>,
}

impl Members {
    /// A new term: what was confirmed in an older one counts no more.
    pub fn begin(&mut self, now: Boot) {
        let leaving = std::mem::take(&mut self.leaving);
        *self = Self { began: now, leaving, ..Self::default() };
    }

    /// The other agents answered.
    ///
    /// `timeline`: that on which the holder writes; what a member received on another one is of another history.
    pub fn hear(
        &mut self,
        heard: Vec<Heard>,
        term: i64,
        timeline: Option<u32>,
        system_id: Option<&str>,
        asked: &[String],
    ) {
        for instance in asked {
            if !heard.iter().any(|answer| answer.instance == *instance) {
                self.heard.remove(instance);
            }
        }
        for answer in heard {
            let report = &answer.report;
            if let Some(member) = &report.member
                && report.system_id.as_deref() == system_id
            {
                let known = self.known.entry(member.clone()).or_default();
                known.instance.clone_from(&answer.instance);
                // It follows this holder in this term: sticky, because a data directory keeps its history until it is
                // cloned anew, and then it has another id.
                let follows = report.term == term && report.phase == Phase::Replica && report.streaming;
                known.confirmed |= follows && report.timeline == timeline;
                known.marker = report.marker;
            }
            self.heard.insert(answer.instance.clone(), answer);
        }
        let present: BTreeSet<String> = self.heard.values().filter_map(|heard| heard.report.member.clone()).collect();
        let now_elsewhere: BTreeSet<String> = self
            .heard
            .values()
            .filter(|heard| heard.report.member.is_some())
            .map(|heard| heard.instance.clone())
            .collect();
        // The same instance with another id: that member is no more.
        self.known
            .retain(|id, known| present.contains(id) || known.streaming || !now_elsewhere.contains(&known.instance));
    }

    /// PostgreSQL said who is connected.
    pub fn see(&mut self, walsenders: &[Walsender], now: Boot) {
        for (id, known) in &mut self.known {
            known.streaming = walsenders.iter().any(|sender| sender.name == *id && sender.streaming);
            if known.streaming {
                known.last_streamed = Some(now);
            }
        }
    }

    /// An instance is to be removed.
    pub fn leave(&mut self, instance: &str) {
        self.leaving.insert(instance.to_owned());
    }

    /// Only these instances are wanted; one that is wanted again does not leave.
    pub fn wanted(&mut self, instances: &[String]) {
        self.leaving.retain(|instance| !instances.contains(instance));
    }

    /// Members as the rules want them: every one that a rule names or that was heard of.
    pub fn joined(&self, register: &Register, wanted: &[String], now: Boot) -> Vec<Joined> {
        let mut ids: BTreeSet<&str> = self.known.keys().map(String::as_str).collect();
        ids.extend(register.ruled_members());
        ids.into_iter()
            .map(|id| {
                let known = self.known.get(id).cloned().unwrap_or_default();
                let instance = if known.instance.is_empty() { instance_of(id).to_owned() } else { known.instance };
                let since = known.last_streamed.unwrap_or(self.began);
                Joined {
                    leaving: self.leaving.contains(&instance) || !wanted.contains(&instance),
                    member: id.to_owned(),
                    confirmed: known.confirmed,
                    marker: known.marker,
                    streaming: known.streaming,
                    gone_for: if known.streaming { 0 } else { now.saturating_sub(since).as_secs() },
                    instance,
                }
            })
            .collect()
    }

    /// Whether an instance's members are named by no rule any more.
    pub fn left(&self, instance: &str, register: &Register) -> bool {
        !register.ruled_members().iter().any(|id| {
            self.known.get(*id).map_or_else(|| instance_of(id) == instance, |known| known.instance == instance)
        })
    }

    /// Whether the term is so young that replicas which serve may not have been heard of, or still move to this holder.
    pub fn gathers(&self, now: Boot) -> bool {
        now < self.began + GATHERS
    }

    /// Replicas that serve: where clients may read.
    pub fn serving(&self) -> Vec<(String, IpAddr)> {
        self.heard
            .values()
            .filter(|heard| heard.report.ready && heard.report.phase == Phase::Replica)
            .map(|heard| (heard.instance.clone(), heard.address))
            .collect()
    }

    /// Instances that could take over now: those that follow and stream, by name.
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut ready: Vec<&Known> =
            self.known.values().filter(|known| known.confirmed && known.streaming && known.marker).collect();
        ready.retain(|known| !self.leaving.contains(&known.instance));
        ready.sort_by_key(|known| &known.instance);
        let report = |known: &Known| self.heard.get(&known.instance).map(|heard| &heard.report);
        ready
            .into_iter()
            .map(|known| Candidate {
                instance: known.instance.clone(),
                full: report(known).is_some_and(|report| report.full.is_some()),
                roomy: report(known).is_some_and(|report| report.roomy && !report.draining),
            })
            .collect()
    }

    /// Instances with a full volume.
    pub fn full(&self) -> Vec<String> {
        let full = self.heard.values().filter(|heard| heard.report.full.is_some());
        full.map(|heard| heard.instance.clone()).collect()
    }

    /// How long this term has lasted.
    pub fn age(&self, now: Boot) -> Duration {
        now.saturating_sub(self.began)
    }

    /// Ids that have or may need a slot: members of instances that are wanted.
    pub fn ids(&self, wanted: &[String]) -> BTreeSet<String> {
        self.known.iter().filter(|(_, known)| wanted.contains(&known.instance)).map(|(id, _)| id.clone()).collect()
    }

    /// The replicas for the report.
    pub fn replicas(&self, walsenders: &[Walsender]) -> Vec<ReplicaReport> {
        walsenders
            .iter()
            .filter(|sender| !sender.backup && !sender.name.is_empty())
            .map(|sender| ReplicaReport {
                member: sender.name.clone(),
                instance: self.known.get(&sender.name).map(|known| known.instance.clone()),
                flushed: sender.flushed,
                replayed: sender.replayed,
                streaming: sender.streaming,
            })
            .collect()
    }

    /// Whether every wanted instance but `me` streams and is confirmed.
    pub fn complete(&self, wanted: &[String], me: &str) -> bool {
        wanted.iter().filter(|instance| *instance != me).all(|instance| {
            self.known.values().any(|known| known.instance == *instance && known.confirmed && known.streaming)
        })
    }
}

/// The instance in a member id, which is made of it and something random.
pub fn instance_of(member: &str) -> &str {
    member.rsplit_once('-').map_or(member, |(instance, _)| instance)
}

/// How long a slot of a member that nobody knows is kept.
pub const SLOT_GRACE: Duration = Duration::from_mins(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::spec::Durability;

    fn sender(name: &str) -> Walsender {
        Walsender {
            pid: 1,
            name: name.into(),
            streaming: true,
            backup: false,
            written: None,
            flushed: None,
            replayed: None,
        }
    }

    fn heard(instance: &str, member: &str, term: i64) -> Heard {
        let report = serde_json::json!({
            "instance": instance, "podUid": "u", "agentVersion": "1", "phase": "replica",
            "member": member, "systemId": "s", "term": term, "ready": true, "marker": true, "streaming": true, "timeline": 2,
        });
        Heard {
            instance: instance.into(),
            address: "10.0.0.2".parse().unwrap(),
            report: serde_json::from_value(report).unwrap(),
        }
    }

    fn book(reports: Vec<Heard>, senders: &[Walsender]) -> Members {
        let mut members = Members::default();
        members.begin(Duration::from_secs(100));
        members.hear(reports, 5, Some(2), Some("s"), &["db-2".into(), "db-3".into()]);
        members.see(senders, Duration::from_secs(101));
        members
    }

    fn register(members: &[&str]) -> Register {
        let mut register = Register::initial(vec!["db-1".into(), "db-2".into()], Durability::Quorum);
        register.rules = vec![crate::core::election::Rule::new(members.iter().copied(), 1)];
        register
    }

    fn find(joined: &[Joined], id: &str) -> Joined {
        joined.iter().find(|member| member.member == id).unwrap().clone()
    }

    const WANTED: [&str; 3] = ["db-1", "db-2", "db-3"];

    fn wanted() -> Vec<String> {
        WANTED.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_member_counts_when_its_agent_says_the_term_and_postgres_says_that_it_streams() {
        let members = book(vec![heard("db-2", "db-2-a", 5), heard("db-3", "db-3-a", 4)], &[sender("db-2-a")]);
        let joined = members.joined(&register(&["db-2-a"]), &wanted(), Duration::from_secs(110));
        let (second, third) = (find(&joined, "db-2-a"), find(&joined, "db-3-a"));
        assert!(second.confirmed && second.streaming && second.gone_for == 0 && !second.leaving);
        assert!(!third.confirmed, "it follows an older term");
        assert!(!members.complete(&wanted(), "db-1"));
    }

    #[test]
    fn a_candidate_says_whether_it_has_room() {
        let mut roomy = heard("db-2", "db-2-a", 5);
        roomy.report.roomy = true;
        let mut full = heard("db-3", "db-3-a", 5);
        full.report.full = Some(crate::api::agent::FullVolume::Data);
        let members = book(vec![roomy, full], &[sender("db-2-a"), sender("db-3-a")]);
        let told: Vec<_> = members.candidates().into_iter().map(|c| (c.instance, c.full, c.roomy)).collect();
        assert_eq!(told, [("db-2".to_owned(), false, true), ("db-3".to_owned(), true, false)]);
        assert_eq!(members.full(), ["db-3"]);
    }

    #[test]
    fn a_planned_member_is_gone_since_the_term_began() {
        let joined = book(vec![], &[]).joined(&register(&["db-2-x"]), &wanted(), Duration::from_secs(140));
        let planned = find(&joined, "db-2-x");
        assert_eq!((planned.instance.as_str(), planned.gone_for, planned.confirmed), ("db-2", 40, false));
    }

    #[test]
    fn an_instance_with_a_new_member_id_forgets_the_old_one() {
        let mut members = book(vec![heard("db-2", "db-2-a", 5)], &[]);
        members.hear(vec![heard("db-2", "db-2-b", 5)], 5, Some(2), Some("s"), &["db-2".into()]);
        assert_eq!(members.ids(&wanted()).into_iter().collect::<Vec<_>>(), ["db-2-b"]);
        assert!(members.ids(&["db-1".into()]).is_empty(), "an instance that is not wanted needs no slot");
        let joined = members.joined(&register(&["db-2-a"]), &wanted(), Duration::from_secs(140));
        assert!(!find(&joined, "db-2-a").confirmed);
    }

    #[test]
    fn an_instance_leaves_when_no_rule_names_a_member_of_it() {
        let mut members = book(vec![heard("db-2", "db-2-a", 5)], &[sender("db-2-a")]);
        members.leave("db-2");
        assert!(find(&members.joined(&register(&["db-2-a"]), &wanted(), Duration::from_secs(1)), "db-2-a").leaving);
        assert!(!members.left("db-2", &register(&["db-2-a"])));
        assert!(members.left("db-2", &register(&["db-3-a"])));
        members.wanted(&wanted());
        assert!(!find(&members.joined(&register(&["db-2-a"]), &wanted(), Duration::from_secs(1)), "db-2-a").leaving);
    }
}
