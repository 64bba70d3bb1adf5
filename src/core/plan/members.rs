//! Which instances there should be.

use std::collections::BTreeSet;

use crate::api::agent::Phase;
use crate::api::config::ClusterConfig;
use crate::api::names::MAX_INSTANCES;
use crate::api::spec::State;
use crate::core::cluster::Cluster;
use crate::core::world::{Known, Volume, World};

/// Which instances there should be, by ordinal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// Those that the spec asks for.
    pub wanted: BTreeSet<u8>,
    /// Those whose Pods run now: the wanted ones, and others whose data may still be needed.
    pub run: BTreeSet<u8>,
    /// Who took the Lease last.
    pub primary: Option<u8>,
    /// Whether it holds it now and takes writes.
    pub settled: bool,
    /// Term of the Lease.
    pub term: i64,
}

impl Members {
    /// Decides it.
    ///
    /// The primary stays, whatever its ordinal, and then the one that should be primary; then come those that exist, so that
    /// a change of primary moves nobody; then the lowest ordinals that are free.
    pub fn of(world: &World, cluster: &Cluster) -> Self {
        let register = world.lease.present().and_then(|lease| lease.register.present());
        let primary = register.and_then(|r| r.holder_instance()).and_then(|name| cluster.names.ordinal(name));
        let held = register.is_some_and(|r| !r.released());
        let reported = primary.and_then(|ordinal| world.reports.get(&ordinal)).and_then(Known::present);
        let settled = held && reported.is_some_and(|report| report.phase == Phase::Primary && report.ready);
        let mut existing = BTreeSet::new();
        if let Known::Present(volumes) = &world.volumes {
            existing.extend(
                volumes.iter().filter(|((_, kind), v)| *kind == Volume::Data && !v.meta.deleting).map(|((o, _), _)| *o),
            );
        }
        let pods: BTreeSet<u8> = world
            .pods
            .present()
            .map(|pods| pods.iter().filter(|(_, pod)| !pod.meta.deleting).map(|(ordinal, _)| *ordinal).collect())
            .unwrap_or_default();
        let mut order: Vec<u8> =
            primary.into_iter().chain(cluster.primary).filter(|ordinal| existing.contains(ordinal)).collect();
        order.extend(&existing);
        order.extend(1..=MAX_INSTANCES);
        let mut wanted = BTreeSet::new();
        for ordinal in order {
            if wanted.len() < usize::from(cluster.instances) {
                wanted.insert(ordinal);
            }
        }
        let mut run = wanted.clone();
        if cluster.state == State::Hibernated {
            run.clear();
        } else if settled {
            // They leave one by one, in order.
            run.extend(existing.iter().filter(|ordinal| pods.contains(ordinal)));
        } else {
            // Nobody takes writes: any copy may be the newest.
            run.extend(&existing);
        }
        Self { wanted, run, primary, settled, term: register.map_or(0, |r| r.term) }
    }
}

/// The agents' configuration with the names of all wanted instances.
pub fn config(config: &ClusterConfig, cluster: &Cluster, members: &Members) -> ClusterConfig {
    let instances = members.wanted.iter().map(|ordinal| cluster.names.instance(*ordinal)).collect();
    ClusterConfig { instances, ..config.clone() }
}
