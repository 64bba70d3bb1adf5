//! An operator that is killed after any of its writes, and agents that begin anew in the middle of a backup: none is taken twice,
//! none waits for ever, and none is told to be complete that is not.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::testing::present;
use super::tests_backup::{asked, catalog, entry, pass, three};
use super::{Action, plan};
use crate::api::archive::{BackupEnd, BackupReport, CatalogEntry, StoreError, StoreReport};
use crate::api::backup::{BackupPhase, HelloBackupStatus};
use crate::api::category::Category;
use crate::core::status::status;
use crate::core::world::{BackupFacts, World};

/// What happens between two looks.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// An operator looks, and is killed after so many writes.
    Look(usize),
    /// Whoever takes a backup completes it.
    Complete,
    Fail,
    /// The agent of this instance begins anew: what it took is lost, and it remembers nothing.
    Restart(u8),
    /// The primary's agent reads the store.
    Read,
    /// The HelloBackup goes.
    Delete,
    Pass(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0_usize..5).prop_map(Event::Look),
        2 => Just(Event::Complete),
        1 => Just(Event::Fail),
        1 => (1_u8..=3).prop_map(Event::Restart),
        1 => Just(Event::Read),
        1 => Just(Event::Delete),
        2 => (1_i64..200).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 1..40)
}

/// The cluster, its agents and its store.
struct Model {
    world: World,
    store: Vec<CatalogEntry>,
    /// How often each was begun and not found in the store.
    begun: BTreeMap<String, usize>,
    /// How often an agent forgot one that is not in the store.
    lost: BTreeMap<String, usize>,
}

impl Model {
    fn new() -> Self {
        let mut world = three(None);
        let facts = asked("one", &world);
        present(&mut world.backups).push(facts);
        Self { world, store: Vec::new(), begun: BTreeMap::new(), lost: BTreeMap::new() }
    }

    fn report(&mut self, ordinal: u8) -> &mut StoreReport {
        present(self.world.reports.get_mut(&ordinal).unwrap()).store.as_mut().unwrap()
    }

    fn running(&mut self) -> Vec<(u8, String)> {
        let all = (1..=3).filter_map(|ordinal| {
            let backup = self.report(ordinal).backup.as_ref().filter(|backup| backup.end.is_none())?;
            Some((ordinal, backup.id.clone()))
        });
        all.collect()
    }

    /// What the agent does with the command, as `agent::backups` and `agent::base_backup` do.
    fn command(&mut self, ordinal: u8, id: &str) {
        if self.report(ordinal).backup.as_ref().is_some_and(|backup| backup.id == id || backup.end.is_none()) {
            return;
        }
        let found = self.store.iter().find(|entry| entry.requested_by == id).cloned();
        if found.is_none() {
            *self.begun.entry(id.to_owned()).or_default() += 1;
        }
        let started_at = self.world.now.to_string();
        self.report(ordinal).backup = Some(BackupReport {
            id: id.to_owned(),
            backup_id: format!("id-{id}"),
            started_at,
            done_bytes: 1,
            total_bytes: 2,
            stored_bytes: 1,
            start_lsn: None,
            end: found.map(BackupEnd::Completed),
        });
    }

    fn end(&mut self, ordinal: u8, end: BackupEnd) {
        self.report(ordinal).backup.as_mut().unwrap().end = Some(end);
    }

    /// An operator that remembers nothing looks, and makes so many writes.
    fn look(&mut self, writes: usize) {
        let next = plan(&self.world);
        let own = status(&self.world, &next, &[]);
        let mut done = 0;
        for step in &next.steps {
            if done >= writes {
                return;
            }
            done += 1;
            match &step.action {
                Action::Backup { ordinal, command, .. } => self.command(*ordinal, &command.id.clone()),
                Action::CancelBackup { ordinal, command } => {
                    if self.running().contains(&(*ordinal, command.id.clone())) {
                        self.end(*ordinal, BackupEnd::Cancelled);
                    }
                }
                Action::Delete { id, .. } => {
                    present(&mut self.world.backups).retain(|facts| facts.name != id.name);
                }
                other => panic!("{other:?}"),
            }
        }
        for (name, status) in next.backups.statuses {
            if done >= writes {
                return;
            }
            done += 1;
            let known = present(&mut self.world.backups).iter_mut().find(|facts| facts.name == name);
            if let Some(facts) = known {
                (facts.status, facts.reported) = (status, true);
            }
        }
        if done < writes {
            self.world.object.status = Some(own);
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Look(writes) => self.look(writes),
            Event::Complete => {
                for (ordinal, id) in self.running() {
                    let entry = entry(&id, self.world.now);
                    self.store.push(entry.clone());
                    self.end(ordinal, BackupEnd::Completed(entry));
                }
            }
            Event::Fail => {
                for (ordinal, _) in self.running() {
                    let why = StoreError { category: Category::Store, message: "full".into() };
                    self.end(ordinal, BackupEnd::Failed(why));
                }
            }
            Event::Restart(ordinal) => {
                let forgotten = self.report(ordinal).backup.take();
                if let Some(backup) = forgotten.filter(|backup| !matches!(backup.end, Some(BackupEnd::Completed(_)))) {
                    *self.lost.entry(backup.id).or_default() += 1;
                }
            }
            Event::Read => catalog(&mut self.world, self.store.clone()),
            Event::Delete => present(&mut self.world.backups).clear(),
            Event::Pass(seconds) => pass(&mut self.world, seconds),
        }
    }

    fn one(&self) -> Option<&BackupFacts> {
        self.world.backups.present()?.first()
    }

    fn holds(&mut self) -> Result<(), TestCaseError> {
        let running = self.running();
        prop_assert!(running.len() <= 1, "{:?} at once", running);
        for entry in &self.store {
            let times = self.store.iter().filter(|other| other.requested_by == entry.requested_by).count();
            prop_assert_eq!(times, 1, "taken twice: {}", &entry.requested_by);
        }
        for (id, times) in &self.begun {
            let lost = self.lost.get(id).copied().unwrap_or(0);
            prop_assert!(*times <= lost + 1, "{} was begun {} times and lost {} times", id, times, lost);
        }
        if let Some(HelloBackupStatus { phase: BackupPhase::Completed, .. }) = self.one().map(|facts| &facts.status) {
            prop_assert!(!self.store.is_empty(), "told to be complete, and it is not there");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_backup_survives_an_operator_that_is_killed_after_any_write(events in events()) {
        let mut model = Model::new();
        for event in events {
            model.happens(event);
            model.holds()?;
        }
        // The trouble is over: it comes to an end.
        for _ in 0..8 {
            for event in [Event::Look(9), Event::Look(9), Event::Complete, Event::Pass(60), Event::Read] {
                model.happens(event);
                model.holds()?;
            }
        }
        if let Some(facts) = model.one() {
            let phase = facts.status.phase;
            prop_assert!(matches!(phase, BackupPhase::Completed | BackupPhase::Failed), "it is stuck: {:?}", facts.status);
            prop_assert!(phase == BackupPhase::Completed || !model.store.iter().any(|entry| entry.requested_by == facts.uid));
        }
        prop_assert!(model.running().is_empty());
    }
}
