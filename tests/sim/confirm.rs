//! The sync rules in PostgreSQL: set what stands in the Lease, and prove it.

use hello_operator::api::agent::Lsn;
use hello_operator::core::election::mutation::{Mutation, active};
use hello_operator::core::election::{Evidence, Rule, SyncSetting, Walsender, rules};

use super::postgres::MARKERS;
use super::world::{Event, Ms, World};

/// The proof that a rule is in force, as far as it has got.
#[derive(Default)]
pub struct Confirmation {
    rule: Option<Rule>,
    run: u64,
    from_empty: bool,
    position: Option<usize>,
    shown_at: Ms,
    checkpointed_at: Option<Ms>,
    marker: Option<u32>,
    committed: bool,
}

impl World {
    /// Sets PostgreSQL to the rule that stands in the Lease, and proves it.
    pub fn confirm(&mut self, node: usize) {
        let joined = self.joined(node);
        let run = self.pg_run(node);
        let Some(agent) = self.nodes[node].agent.as_ref() else { return };
        let (Some(seen), Some(terms)) = (&agent.lease, &agent.terms) else { return };
        let Some(tenure) = &agent.tenure else { return };
        if !rules::are_of(&seen.register, &agent.me.holder(), tenure.term) {
            return;
        }
        let Some(present) = seen.register.rule() else { return };
        let rule = if active(Mutation::RuleSetBeforeLease) {
            rules::wanted(terms.durability, terms.k, present, &joined)
        } else {
            present.clone()
        };
        let setting = rules::setting(&rule, &joined);
        let Some(current) = self.nodes[node].pg.as_ref().map(|pg| pg.setting.clone()) else { return };
        let proof = &self.nodes[node].agent.as_ref().map(|agent| (agent.proof_of.rule.clone(), agent.proof_of.run));
        let other = *proof != Some((Some(rule.clone()), run));
        if other {
            self.begin_proof(node, &rule, current.k == 0);
        }
        if other || current != setting {
            self.apply(node, &setting, current != setting);
            return;
        }
        self.prove(node, &rule);
    }

    /// Another rule is to be proven. What was empty is so until a CHECKPOINT has completed, also when it is the second rule
    /// since then.
    fn begin_proof(&mut self, node: usize, rule: &Rule, empty: bool) {
        let (now, run) = (self.now, self.pg_run(node));
        let machine = &mut self.nodes[node];
        let Some(agent) = machine.agent.as_mut() else { return };
        let before = &agent.proof_of;
        let done = before.run == run && before.checkpointed_at.is_some_and(|at| at <= now);
        let unfinished = before.run == run && before.from_empty && !done;
        if done
            && !active(Mutation::NoCheckpoint)
            && let Some(pg) = machine.pg.as_mut()
        {
            pg.defined_at = pg.defined_at.map(|at| at.min(now));
        }
        agent.confirmed = None;
        agent.proof_of = Confirmation {
            rule: Some(rule.clone()),
            run,
            from_empty: empty || unfinished && !active(Mutation::EmptyForgotten),
            shown_at: now + 30,
            ..Confirmation::default()
        };
    }

    fn apply(&mut self, node: usize, setting: &SyncSetting, changed: bool) {
        if changed {
            self.note(|w| format!("sync   {} ANY {} {:?}", w.nodes[node].instance, setting.k, setting.members));
            self.set_sync(node, setting.clone(), false);
        }
        let shown_at = self.now + 30;
        if let Some(agent) = self.nodes[node].agent.as_mut()
            && agent.confirmed.is_none()
        {
            agent.proof_of.position = None;
            agent.proof_of.shown_at = shown_at;
            agent.proof_of.checkpointed_at = None;
            agent.proof_of.marker = None;
            agent.proof_of.committed = false;
        }
    }

    fn prove(&mut self, node: usize, rule: &Rule) {
        let now = self.now;
        let Some(agent) = self.nodes[node].agent.as_ref() else { return };
        if agent.confirmed.is_none() && agent.nudged <= now && now < agent.proof_of.shown_at + 2_000 {
            let (start, soon) = (agent.start, self.rng.range(25, 90));
            if let Some(agent) = self.nodes[node].agent.as_mut() {
                agent.nudged = now + soon;
            }
            self.at(now + soon, Event::Nudge { node, start });
        }
        let Some(agent) = self.nodes[node].agent.as_ref() else { return };
        if agent.confirmed.is_some() || now < agent.proof_of.shown_at {
            return;
        }
        if agent.proof_of.position.is_none() {
            let position = self.write_record(node);
            let checkpoint = now + self.rng.range(30, 900);
            if let Some(agent) = self.nodes[node].agent.as_mut() {
                agent.proof_of.position = Some(position);
                agent.proof_of.checkpointed_at = Some(checkpoint);
            }
            return;
        }
        let walsenders: Vec<Walsender> = self
            .walsenders(node)
            .into_iter()
            .map(|conn| Walsender {
                member: self.conns[conn].name.clone(),
                written: Lsn(self.conns[conn].write as u64),
                flushed: Lsn(self.conns[conn].flush as u64),
            })
            .collect();
        let Some(agent) = self.nodes[node].agent.as_ref() else { return };
        let checkpointed = agent.proof_of.checkpointed_at.is_some_and(|at| at <= now);
        if checkpointed
            && !active(Mutation::NoCheckpoint)
            && let Some(pg) = self.nodes[node].pg.as_mut()
        {
            pg.defined_at = pg.defined_at.map(|at| at.min(now));
        }
        let Some(agent) = self.nodes[node].agent.as_ref() else { return };
        let proof = &agent.proof_of;
        let position = proof.position.unwrap_or_default();
        let evidence = Evidence {
            shown: true,
            position: Lsn(position as u64),
            from_empty: proof.from_empty,
            checkpointed,
            walsenders: &walsenders,
            committed: proof.committed,
        };
        if rules::in_force(rule, &evidence) {
            self.note(|w| format!("rule   {} confirmed {rule}", w.nodes[node].instance));
            if let Some(agent) = self.nodes[node].agent.as_mut() {
                agent.confirmed = Some(rule.clone());
            }
        } else if rules::ready_for_marker(rule, &evidence) {
            if proof.marker.is_none() {
                let marker = MARKERS + u32::try_from(self.id()).unwrap_or(0);
                if let Some(agent) = self.nodes[node].agent.as_mut() {
                    agent.proof_of.marker = Some(marker);
                }
                self.commit(node, marker);
            }
        } else if now > proof.shown_at + 2_500 {
            // What does not get there is ended.
            for conn in self.walsenders(node) {
                if self.conns[conn].write < position {
                    self.conns[conn].sending = false;
                }
            }
        }
    }

    /// A commit returned to its client.
    pub fn on_acknowledge(&mut self, node: usize, run: u64, id: u32) {
        let Some(pg) = self.nodes[node].pg.as_ref().filter(|pg| pg.run == run) else { return };
        let term = pg.term;
        if id >= MARKERS {
            if let Some(agent) = self.nodes[node].agent.as_mut()
                && agent.proof_of.marker == Some(id)
            {
                agent.proof_of.committed = true;
                if self.nodes[node].agent_frozen_until <= self.now {
                    self.tick(node);
                }
            }
            return;
        }
        self.check_acknowledged(node, term, id);
    }
}
