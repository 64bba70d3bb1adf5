//! The spec, once validated: a type whose fields cannot be wrong. After this everything is infallible.
//!
//! The rules and their sentences are those of the CRD ([`crate::api::crd`], [`crate::api::spec`]); they are checked again
//! because a bare CRD can let anything through. `tests/api` keeps the two equal on generated objects.

mod backup;
mod check;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LocalObjectReference, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub use backup::{Backup, Restore, RestoreFrom, Verify};

use check::{
    check_failover, check_hba, check_identifier, check_instances, check_name, check_parameters, check_primary,
    check_size, check_sync_replicas, check_version, is_cidr, version_number,
};

use super::quantity;
use crate::api::config::LeaseBounds;
use crate::api::crd::RESTORE_STAYS;
use crate::api::names::Names;
use crate::api::spec::{
    CertificatesSpec, Destination, Durability, Engine, HelloOperatorSpec, ImagePullPolicy, OnDelete, PodSpec,
    SecretsSpec, ServicesSpec, State,
};

/// Smallest volume in which PostgreSQL can start.
pub const MIN_VOLUME: i128 = 32 << 20;

/// A validated cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Names of everything that belongs to it.
    pub names: Names,
    /// The engine.
    pub engine: Engine,
    /// Major version, one of [`VERSIONS`].
    pub version: u16,
    /// Image of the database.
    pub image: String,
    /// When to pull it.
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Secrets for pulling it.
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// User of the database's processes.
    pub uid: i64,
    /// Group of the database's processes.
    pub gid: i64,
    /// Wanted instances, 1 to [`crate::api::names::MAX_INSTANCES`].
    pub instances: u8,
    /// Resources of the database container.
    pub resources: Option<ResourceRequirements>,
    /// Memory limit in bytes, when there is one.
    pub memory_limit: Option<u64>,
    /// Where and how Pods run.
    pub pod: PodSpec,
    /// Volumes.
    pub storage: Storage,
    /// Durability as the user wrote it; None leaves the decision of the creation.
    pub durability: Option<Durability>,
    /// k of ANY k, 1 to 8.
    pub sync_replicas: u8,
    /// Ordinal of the instance that should be primary.
    pub primary: Option<u8>,
    /// When another instance takes over.
    pub failover: Failover,
    /// The user's settings of PostgreSQL.
    pub parameters: BTreeMap<String, String>,
    /// The user's lines of pg_hba.conf.
    pub hba: Vec<String>,
    /// Database made at creation.
    pub database: String,
    /// Role that owns it.
    pub owner: String,
    /// SQL of the creation.
    pub init_sql: Vec<String>,
    /// Services.
    pub services: ServicesSpec,
    /// The user's own Secrets.
    pub secrets: SecretsSpec,
    /// The user's own certificates.
    pub certificates: CertificatesSpec,
    /// Archive and base backups.
    pub backup: Backup,
    /// What it begins with; None: an empty database.
    pub restore: Option<Restore>,
    /// The archive that it begins with, once names are resolved.
    pub source: Option<Destination>,
    /// Whether it runs.
    pub state: State,
}

/// Major versions that are supported.
pub const VERSIONS: [u16; 4] = [15, 16, 17, 18];

/// Volumes of each instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Storage {
    /// Size of the data volume.
    pub size: Quantity,
    /// The same in bytes.
    pub bytes: u64,
    /// Storage class; None is the cluster's default.
    pub class: Option<String>,
    /// Size of the WAL volume, when there is one.
    pub wal_size: Option<Quantity>,
    /// The same in bytes.
    pub wal_bytes: Option<u64>,
    /// What happens to the volumes when the object goes.
    pub on_delete: OnDelete,
}

/// When another instance takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failover {
    /// Whether one takes over from a primary that is lost.
    pub enabled: bool,
    /// Bounds of the primary Lease.
    pub bounds: LeaseBounds,
    /// With `Async`: bytes that a new primary may lack.
    pub max_lag: u64,
}

/// A user's mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {sentence}")]
pub struct Invalid {
    /// Path of the field, such as `spec.storage.size`.
    pub field: String,
    /// What to write instead.
    pub sentence: String,
}

fn invalid(field: impl Into<String>, sentence: impl Into<String>) -> Invalid {
    Invalid { field: field.into(), sentence: sentence.into() }
}

impl Cluster {
    /// Validates the spec of the object `name`. All mistakes are told at once.
    pub fn parse(name: &str, spec: &HelloOperatorSpec) -> Result<Self, Vec<Invalid>> {
        let mut errors = Vec::new();
        check_name(name, &mut errors);
        let version = check_version(&spec.version, &mut errors);
        let instances = check_instances(spec.instances, &mut errors);
        let sync_replicas = check_sync_replicas(spec, &mut errors);
        for (field, id) in [("spec.uid", spec.uid), ("spec.gid", spec.gid)] {
            if !(1..=i64::from(i32::MAX)).contains(&id) {
                errors.push(invalid(field, "use an id from 1 to 2147483647; root is not allowed"));
            }
        }
        let primary = check_primary(name, spec.primary.as_deref(), &mut errors);
        let failover = check_failover(&spec.failover, &mut errors);
        let bytes = check_size("spec.storage.size", &spec.storage.size, &mut errors);
        let wal_bytes =
            spec.storage.wal_size.as_ref().map(|size| check_size("spec.storage.walSize", size, &mut errors));
        check_parameters(&spec.postgresql.parameters, &mut errors);
        for line in &spec.postgresql.hba {
            check_hba(line, &mut errors);
        }
        check_identifier("spec.postgresql.database", &spec.postgresql.database, &mut errors);
        check_identifier("spec.postgresql.owner", &spec.postgresql.owner, &mut errors);
        for (field, service) in [("spec.services.rw", &spec.services.rw), ("spec.services.ro", &spec.services.ro)] {
            for range in &service.load_balancer_source_ranges {
                if !is_cidr(range) {
                    errors.push(invalid(
                        format!("{field}.loadBalancerSourceRanges"),
                        "use an address range, such as 192.0.2.0/24",
                    ));
                }
            }
        }
        let backup = backup::check_backup(&spec.backup, &mut errors);
        let restore = spec.bootstrap.restore.as_ref().and_then(|restore| backup::check_restore(restore, &mut errors));
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            names: Names::new(name),
            engine: spec.engine,
            version,
            image: spec.image.clone().unwrap_or_else(|| format!("postgres:{version}")),
            image_pull_policy: spec.image_pull_policy,
            image_pull_secrets: spec.image_pull_secrets.clone(),
            uid: spec.uid,
            gid: spec.gid,
            instances,
            memory_limit: memory_limit(spec.resources.as_ref()),
            resources: spec.resources.clone(),
            pod: spec.pod.clone(),
            storage: Storage {
                size: spec.storage.size.clone(),
                bytes,
                class: spec.storage.storage_class_name.clone(),
                wal_size: spec.storage.wal_size.clone(),
                wal_bytes,
                on_delete: spec.storage.on_delete,
            },
            durability: spec.replication.durability,
            sync_replicas,
            primary,
            failover,
            parameters: spec
                .postgresql
                .parameters
                .iter()
                .map(|(key, value)| (key.clone(), value.to_string()))
                .collect(),
            hba: spec.postgresql.hba.clone(),
            database: spec.postgresql.database.clone(),
            owner: spec.postgresql.owner.clone(),
            init_sql: spec.postgresql.init_sql.clone(),
            services: spec.services.clone(),
            secrets: spec.secrets.clone(),
            certificates: spec.certificates.clone(),
            backup,
            restore,
            source: None,
            state: spec.state,
        })
    }

    /// Durability of a new cluster: as written, or by the number of instances. It is decided once and then kept.
    pub fn durability_at_creation(&self) -> Durability {
        self.durability.unwrap_or(if self.instances >= 3 { Durability::Quorum } else { Durability::Async })
    }
}

/// What may not change from one accepted spec to the next. The CRD's `oldSelf` rules.
pub fn transition(old: &HelloOperatorSpec, new: &HelloOperatorSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    if old.engine != new.engine {
        errors.push(invalid("spec", "engine cannot be changed: make a new object for another engine"));
    }
    if let (Some(before), Some(after)) = (version_number(&old.version), version_number(&new.version))
        && after < before
    {
        errors.push(invalid(
            "spec",
            "version never goes down: restore a backup into a new object of the older version instead",
        ));
    }
    if old.storage.storage_class_name != new.storage.storage_class_name {
        errors.push(invalid(
            "spec",
            "storage.storageClassName cannot be changed: make a new object with the other class",
        ));
    }
    if old.storage.wal_size.is_some() != new.storage.wal_size.is_some() {
        errors.push(invalid("spec", "storage.walSize cannot be added or removed: make a new object for that"));
    }
    if (&old.postgresql.database, &old.postgresql.owner) != (&new.postgresql.database, &new.postgresql.owner) {
        errors.push(invalid(
            "spec",
            "postgresql.database and postgresql.owner cannot be changed: create the other database with SQL",
        ));
    }
    if old.bootstrap.restore != new.bootstrap.restore {
        errors.push(invalid("spec", RESTORE_STAYS));
    }
    let sizes = [
        ("size", Some(&old.storage.size), Some(&new.storage.size)),
        ("walSize", old.storage.wal_size.as_ref(), new.storage.wal_size.as_ref()),
    ];
    for (field, before, after) in sizes {
        if let (Some(before), Some(after)) = (before, after)
            && let (Some(before), Some(after)) = (quantity::nanos(&before.0), quantity::nanos(&after.0))
            && after < before
        {
            errors.push(invalid(
                "spec.storage",
                format!("storage.{field} may grow but never shrink: write the old size or a larger one"),
            ));
        }
    }
    errors
}

fn memory_limit(resources: Option<&ResourceRequirements>) -> Option<u64> {
    let limit = resources?.limits.as_ref()?.get("memory")?;
    quantity::parse(&limit.0).and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::spec::{FailoverSpec, IntOrText};

    fn sentences(name: &str, change: impl FnOnce(&mut HelloOperatorSpec)) -> Vec<String> {
        let mut spec: HelloOperatorSpec = serde_json::from_str("{}").unwrap();
        change(&mut spec);
        Cluster::parse(name, &spec).err().unwrap_or_default().into_iter().map(|e| e.to_string()).collect()
    }

    #[test]
    fn an_empty_spec_is_three_instances_of_postgres_17() {
        let spec: HelloOperatorSpec = serde_json::from_str("{}").unwrap();
        let cluster = Cluster::parse("my-helloworld", &spec).unwrap();
        assert_eq!((cluster.instances, cluster.version, cluster.image.as_str()), (3, 17, "postgres:17"));
        assert_eq!(cluster.durability_at_creation(), Durability::Quorum);
        assert_eq!(cluster.storage.bytes, 1 << 30);
    }

    #[test]
    fn a_version_may_be_quoted_or_not() {
        for version in ["17", "\"17\""] {
            let spec: HelloOperatorSpec = serde_json::from_str(&format!("{{\"version\": {version}}}")).unwrap();
            assert_eq!(Cluster::parse("db", &spec).unwrap().version, 17);
        }
    }

    #[test]
    fn each_mistake_is_told_with_what_to_write_instead() {
        assert!(sentences("db", |s| s.instances = 0)[0].contains("say state: Hibernated"));
        assert!(sentences("my.db", |_| {})[0].contains("no dots"));
        assert!(sentences(&"a".repeat(46), |_| {})[0].contains("at most 45"));
        assert!(sentences("db", |s| s.version = IntOrText::Int(14))[0].contains("15, 16, 17 or 18"));
        assert!(sentences("db", |s| s.storage.size = Quantity("1Mi".into()))[0].contains("at least 32Mi"));
        assert!(sentences("db", |s| s.postgresql.owner = "postgres".into())[0].contains("choose another"));
        let owned = sentences("db", |s| {
            s.postgresql.parameters.insert("port".into(), IntOrText::Int(1));
        });
        assert!(owned[0].contains("port belongs to the operator"), "{owned:?}");
        let quorum = sentences("db", |s| {
            s.instances = 2;
            s.replication =
                crate::api::spec::ReplicationSpec { durability: Some(Durability::Quorum), sync_replicas: 2 };
        });
        assert!(quorum[0].contains("syncReplicas must be smaller"), "{quorum:?}");
    }

    #[test]
    fn the_bounds_of_the_lease_leave_time_for_the_stop() {
        let lease = |duration, deadline, retry| {
            sentences("db", |s| {
                s.failover = FailoverSpec {
                    lease_duration_seconds: duration,
                    renew_deadline_seconds: deadline,
                    retry_period_seconds: retry,
                    ..FailoverSpec::default()
                };
            })
        };
        assert!(lease(15, 10, 2).is_empty() && lease(8, 5, 2).is_empty() && lease(300, 297, 60).is_empty());
        assert!(lease(15, 13, 2)[0].contains("more than 2 less"), "{:?}", lease(15, 13, 2));
        assert!(lease(15, 10, 5)[0].contains("less than half"), "{:?}", lease(15, 10, 5));
        assert!(lease(7, 5, 1)[0].contains("use 8 to 300 leaseDurationSeconds"));
        assert_eq!(lease(i32::MIN, i32::MAX, i32::MAX).len(), 5);
    }

    #[test]
    fn the_primary_that_is_wanted_is_an_instance_of_this_object() {
        for (primary, right) in [("db-1", true), ("db-9", true), ("db-0", false), ("db-10", false), ("x-1", false)] {
            assert_eq!(sentences("db", |s| s.primary = Some(primary.into())).is_empty(), right, "{primary}");
        }
    }

    #[test]
    fn the_lag_that_is_allowed_is_a_number_of_bytes() {
        let lag = |text: &str| {
            let spec = HelloOperatorSpec {
                failover: FailoverSpec { max_lag_bytes: Quantity(text.into()), ..FailoverSpec::default() },
                ..HelloOperatorSpec::default()
            };
            Cluster::parse("db", &spec).map(|cluster| cluster.failover.max_lag).map_err(|errors| errors.len())
        };
        assert_eq!((lag("16Mi"), lag("0"), lag("5")), (Ok(16 << 20), Ok(0), Ok(5)));
        assert_eq!((lag("-1"), lag("much"), lag("-1n")), (Err(1), Err(1), Err(1)));
    }

    #[test]
    fn a_volume_may_grow_but_not_shrink() {
        let old: HelloOperatorSpec = serde_json::from_str(r#"{"storage": {"size": "2Gi"}}"#).unwrap();
        let mut new = old.clone();
        new.storage.size = Quantity("2048Mi".into());
        assert!(transition(&old, &new).is_empty());
        new.storage.size = Quantity("2G".into());
        assert_eq!(transition(&old, &new).len(), 1);
    }
}
