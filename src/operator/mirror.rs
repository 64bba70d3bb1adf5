//! What a watch said, kept small: only the facts that decisions need, by cluster. Unlike a reflector it tells of what
//! vanished during a gap, and of changes only where they matter.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A HelloOperator object: namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterKey {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl ClusterKey {
    /// The object `namespace`/`name`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Facts of one watched object.
pub trait Facts: Clone + Send + Sync + 'static {
    /// Whether going from these facts to `next` is worth a reconcile.
    fn differs(&self, next: &Self) -> bool;

    /// These facts, with what has to be remembered of the ones before.
    #[must_use]
    fn after(self, _before: &Self) -> Self {
        self
    }
}

struct Slot<T> {
    facts: T,
    /// Number of the listing in which it was last seen.
    round: u64,
}

/// What one watch covers: one namespace, or all where there is none.
pub type Scope = Option<Arc<str>>;

/// The facts of one kind: of one watch, or of one for each namespace.
pub struct Mirror<T> {
    slots: RwLock<Slots<T>>,
    /// How many watches fill it.
    watches: AtomicUsize,
    /// How many of them have a complete listing.
    synced: AtomicUsize,
}

/// Slots by name.
type Named<T> = Vec<(Box<str>, Slot<T>)>;

struct Slots<T> {
    /// A vector each: a tree would hold room for eleven where most clusters have one.
    by_cluster: HashMap<ClusterKey, Named<T>>,
    rounds: HashMap<Scope, Round>,
}

/// Listings of one watch.
#[derive(Default)]
struct Round {
    number: u64,
    complete: bool,
}

impl<T> Slots<T> {
    /// Number of the listing that a cluster in this namespace belongs to.
    fn round(&self, namespace: &Arc<str>) -> u64 {
        let own = || self.rounds.get(&Some(Arc::clone(namespace)));
        self.rounds.get(&None).or_else(own).map_or(0, |round| round.number)
    }
}

fn find<'a, T>(all: &'a mut [(Box<str>, Slot<T>)], name: &str) -> Option<&'a mut Slot<T>> {
    all.iter_mut().find(|(of, _)| **of == *name).map(|(_, slot)| slot)
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self {
            slots: RwLock::new(Slots { by_cluster: HashMap::new(), rounds: HashMap::new() }),
            watches: AtomicUsize::new(1),
            synced: AtomicUsize::new(0),
        }
    }
}

impl<T: Facts> Mirror<T> {
    /// So many watches will fill it.
    pub fn filled_by(&self, watches: usize) {
        self.watches.store(watches, Ordering::Release);
    }

    /// Whether the first listings are complete. Before that, nothing is known to be absent.
    pub fn synced(&self) -> bool {
        self.synced.load(Ordering::Acquire) >= self.watches.load(Ordering::Acquire)
    }

    /// Everything of one cluster.
    pub fn of(&self, cluster: &ClusterKey) -> BTreeMap<Box<str>, T> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots
            .by_cluster
            .get(cluster)
            .map(|of| of.iter().map(|(name, slot)| (name.clone(), slot.facts.clone())).collect())
            .unwrap_or_default()
    }

    /// One of one cluster.
    pub fn get(&self, cluster: &ClusterKey, name: &str) -> Option<T> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.by_cluster.get(cluster)?.iter().find(|(of, _)| **of == *name).map(|(_, slot)| slot.facts.clone())
    }

    /// All clusters.
    pub fn clusters(&self) -> Vec<ClusterKey> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).by_cluster.keys().cloned().collect()
    }

    /// Changes facts in place, when they are there.
    pub fn update(&self, cluster: &ClusterKey, name: &str, change: impl FnOnce(&mut T)) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.by_cluster.get_mut(cluster).and_then(|all| find(all, name)) {
            change(&mut slot.facts);
        }
    }

    /// It is there, with these facts. Returns the ones before, and whether the difference matters.
    pub fn put(&self, cluster: &ClusterKey, name: &str, facts: T) -> (Option<T>, bool) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let round = slots.round(&cluster.namespace);
        let of = slots.by_cluster.entry(cluster.clone()).or_insert_with(|| Vec::with_capacity(1));
        if let Some(slot) = find(of, name) {
            let facts = facts.after(&slot.facts);
            let matters = slot.facts.differs(&facts);
            slot.round = round;
            return (Some(std::mem::replace(&mut slot.facts, facts)), matters);
        }
        of.push((name.into(), Slot { facts, round }));
        (None, true)
    }

    /// It is gone.
    pub fn remove(&self, cluster: &ClusterKey, name: &str) -> Option<T> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let of = slots.by_cluster.get_mut(cluster)?;
        let at = of.iter().position(|(of, _)| **of == *name);
        let facts = at.map(|at| of.swap_remove(at).1.facts);
        if of.is_empty() {
            slots.by_cluster.remove(cluster);
        }
        facts
    }

    /// A listing begins.
    pub fn begin(&self, scope: &Scope) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.rounds.entry(scope.clone()).or_default().number += 1;
    }

    /// A listing is complete: what was not in it is gone.
    pub fn complete(&self, scope: &Scope) -> Vec<(ClusterKey, T)> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let listed = slots.rounds.entry(scope.clone()).or_default();
        let (round, first) = (listed.number, !std::mem::replace(&mut listed.complete, true));
        let mut gone = Vec::new();
        slots.by_cluster.retain(|cluster, of| {
            if scope.as_ref().is_some_and(|namespace| *namespace != cluster.namespace) {
                return true;
            }
            of.retain(|(_, slot)| {
                let stays = slot.round == round;
                if !stays {
                    gone.push((cluster.clone(), slot.facts.clone()));
                }
                stays
            });
            !of.is_empty()
        });
        if first {
            self.synced.fetch_add(1, Ordering::AcqRel);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Facts for u8 {
        fn differs(&self, next: &Self) -> bool {
            self != next
        }
    }

    #[test]
    fn what_vanished_in_a_gap_is_told_after_the_next_listing() {
        let mirror = Mirror::default();
        let cluster = ClusterKey::new("shop", "db");
        mirror.begin(&None);
        assert_eq!(mirror.put(&cluster, "a", 1_u8), (None, true));
        mirror.put(&cluster, "b", 1);
        assert!(!mirror.synced());
        assert!(mirror.complete(&None).is_empty() && mirror.synced());
        mirror.begin(&None);
        assert_eq!(mirror.put(&cluster, "a", 1), (Some(1), false), "the same again is no news");
        assert_eq!(mirror.complete(&None), [(cluster.clone(), 1)]);
        assert_eq!(mirror.of(&cluster).len(), 1);
        assert_eq!(mirror.remove(&cluster, "a"), Some(1));
        assert!(mirror.clusters().is_empty());
    }

    #[test]
    fn each_namespace_is_listed_by_itself_and_nothing_is_known_before_all_are() {
        let mirror = Mirror::default();
        mirror.filled_by(2);
        let scope = |name: &str| Some(Arc::from(name));
        let (shop, bank) = (ClusterKey::new("shop", "db"), ClusterKey::new("bank", "db"));
        mirror.begin(&scope("shop"));
        mirror.put(&shop, "a", 1_u8);
        assert!(mirror.complete(&scope("shop")).is_empty() && !mirror.synced());
        mirror.begin(&scope("bank"));
        mirror.put(&bank, "a", 1);
        assert!(mirror.complete(&scope("bank")).is_empty() && mirror.synced());
        mirror.begin(&scope("bank"));
        assert_eq!(mirror.complete(&scope("bank")), [(bank, 1)], "what is elsewhere stays");
        assert_eq!(mirror.of(&shop).len(), 1);
    }
}
