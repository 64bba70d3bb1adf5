//! Everything that one reconcile knows of one cluster. What could not be learnt is [`Known::Unknown`], which is never the
//! same as [`Known::Absent`]: nothing is created or deleted because of an unknown.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::election::Register;
use crate::api::agent::{HandOver, Report};
use crate::api::backup::{BackupTarget, HelloBackupStatus};
use crate::api::config::{ClusterConfig, Collector};
use crate::api::names::{GROUP, KIND_BACKUP, Names, VERSION};
use crate::api::spec::HelloOperatorSpec;
use crate::api::status::HelloOperatorStatus;
use crate::api::verify::VerifyResult;

/// What is known of a thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known<T> {
    /// It could not be learnt; the sentence says why.
    Unknown(String),
    /// It is not there.
    Absent,
    /// It is there.
    Present(T),
}

impl<T> Known<T> {
    /// The thing, when it is there.
    pub fn present(&self) -> Option<&T> {
        match self {
            Self::Present(value) => Some(value),
            Self::Unknown(_) | Self::Absent => None,
        }
    }
    /// Whether it is certainly not there.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
    /// Why it is not known, if so.
    pub fn unknown(&self) -> Option<&str> {
        match self {
            Self::Unknown(why) => Some(why),
            Self::Absent | Self::Present(_) => None,
        }
    }
}

impl<T> From<Option<T>> for Known<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Present)
    }
}

/// The kinds of children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Accepted spec, for the agents.
    ConfigMap,
    /// Passwords and certificates.
    Secret,
    /// The agents' account.
    ServiceAccount,
    /// What the agents may do.
    Role,
    /// That the agents may do it.
    RoleBinding,
    /// How applications reach the instances.
    Service,
    /// Where `-rw` and `-ro` lead; written by the holder of the Lease.
    EndpointSlice,
    /// How many instances a drain may take at once.
    PodDisruptionBudget,
    /// The register of the election.
    Lease,
    /// The data.
    PersistentVolumeClaim,
    /// The instances.
    Pod,
    /// Backups. They have no owner and are written only when they are made.
    HelloBackup,
}

impl Kind {
    /// Kinds of which only the metadata is watched: their content is a function of the spec. Secrets are none of them: a right
    /// to watch them would be a right to read every Secret of the Kubernetes cluster, so they are read one by one, by name.
    pub const PLAIN: [Self; 7] = [
        Self::ConfigMap,
        Self::ServiceAccount,
        Self::Role,
        Self::RoleBinding,
        Self::Service,
        Self::EndpointSlice,
        Self::PodDisruptionBudget,
    ];

    /// API group, version, kind and plural.
    pub fn resource(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::ConfigMap => ("", "v1", "ConfigMap", "configmaps"),
            Self::Secret => ("", "v1", "Secret", "secrets"),
            Self::ServiceAccount => ("", "v1", "ServiceAccount", "serviceaccounts"),
            Self::Role => ("rbac.authorization.k8s.io", "v1", "Role", "roles"),
            Self::RoleBinding => ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::EndpointSlice => ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
            Self::PodDisruptionBudget => ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
            Self::Lease => ("coordination.k8s.io", "v1", "Lease", "leases"),
            Self::PersistentVolumeClaim => ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
            Self::Pod => ("", "v1", "Pod", "pods"),
            Self::HelloBackup => (GROUP, VERSION, KIND_BACKUP, "hellobackups"),
        }
    }

    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        self.resource().2
    }
}

/// Which child: its kind and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChildId {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

impl ChildId {
    /// The child `kind`/`name`.
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl std::fmt::Display for ChildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}

/// Whose child it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// Controlled by the object with this uid.
    Object(String),
    /// Labelled as the cluster's, controlled by nobody: it outlives objects and is adopted.
    Adoptable,
    /// Somebody else's.
    Foreign,
}

/// Metadata of a child, as far as decisions need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildMeta {
    /// Its uid.
    pub uid: String,
    /// Its version; precondition of a delete.
    pub version: String,
    /// Whose it is.
    pub owner: Owner,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// [`crate::api::names::ANNOTATION_HASH`].
    pub hash: Option<String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether somebody else changed or removed what we set in it.
    pub edited: bool,
}

/// The object.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectFacts {
    /// Its names.
    pub names: Names,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
    /// The spec as it reads now; None when it reads without one.
    pub spec: Option<HelloOperatorSpec>,
    /// Why the spec could not be read, in a sentence.
    pub unreadable: Option<String>,
    /// Value of [`crate::api::names::ANNOTATION_RESTART`].
    pub restart: Option<String>,
    /// Values of [`crate::api::names::ANNOTATION_RESTART_ONE`], by ordinal.
    pub restart_one: BTreeMap<u8, String>,
    /// Value of [`crate::api::names::ANNOTATION_ROTATE_PASSWORDS`].
    pub rotate_passwords: Option<String>,
    /// Value of [`crate::api::names::ANNOTATION_ACCEPT_LOSS`].
    pub accept_loss: Option<String>,
    /// The status as it was last written.
    pub status: Option<HelloOperatorStatus>,
}

impl ObjectFacts {
    /// Of an object that does not exist.
    pub fn missing(namespace: &str, name: &str) -> Self {
        Self {
            names: Names::new(name),
            namespace: namespace.to_owned(),
            uid: String::new(),
            generation: 0,
            spec: None,
            unreadable: None,
            restart: None,
            restart_one: BTreeMap::new(),
            rotate_passwords: None,
            accept_loss: None,
            status: None,
        }
    }
}

/// An instance's Pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodFacts {
    /// Its metadata.
    pub meta: ChildMeta,
    /// Its ordinal.
    pub ordinal: u8,
    /// Node that it runs on.
    pub node: Option<String>,
    /// Its address.
    pub address: Option<String>,
    /// Whether the kubelet counts it as ready.
    pub ready: bool,
    /// Whether the database container runs.
    pub running: bool,
    /// Whether it ended for good and has to be made anew.
    pub ended: bool,
    /// [`crate::api::names::ANNOTATION_TEMPLATE`], parsed.
    pub template: Option<Value>,
    /// [`crate::api::names::ANNOTATION_SECRETS`].
    pub secrets: Option<String>,
    /// What the object's annotations asked of this instance when the Pod was made ([`crate::core::plan::restart::wish`]).
    pub restart: Option<String>,
    /// [`crate::api::names::LABEL_ROLE`].
    pub role: Option<String>,
    /// What keeps it from running.
    pub trouble: Option<Trouble>,
}

/// What keeps something from working: a reason for machines, a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// In CamelCase.
    pub reason: String,
    /// In words.
    pub sentence: String,
}

/// Which of an instance's volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Volume {
    /// PGDATA.
    Data,
    /// The WAL.
    Wal,
}

impl Volume {
    /// Value of [`crate::api::names::LABEL_VOLUME`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Wal => "wal",
        }
    }
}

/// A volume of an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeFacts {
    /// Its metadata.
    pub meta: ChildMeta,
    /// Ordinal of its instance.
    pub ordinal: u8,
    /// Which one.
    pub volume: Volume,
    /// Bytes asked for.
    pub requested: u64,
    /// Whether it is bound.
    pub bound: bool,
    /// Its storage class.
    pub class: Option<String>,
    /// What keeps it from being bound or from growing.
    pub trouble: Option<Trouble>,
}

/// The Lease of the primary.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseFacts {
    /// Its metadata.
    pub meta: ChildMeta,
    /// The register in it. An unreadable one is Unknown.
    pub register: Known<Register>,
    /// When it was taken last, for people.
    pub since: Option<Timestamp>,
    /// The last hand-over, as who took it tells.
    pub hand_over: Option<HandOver>,
}

/// The cluster's own Secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SecretKind {
    /// The certificate authority.
    Ca,
    /// The application's role.
    App,
    /// The superuser.
    Superuser,
    /// PostgreSQL's server certificate.
    Server,
    /// The certificate by which members know each other.
    Replication,
}

impl SecretKind {
    /// All of them, the authority first.
    pub const ALL: [Self; 5] = [Self::Ca, Self::App, Self::Superuser, Self::Server, Self::Replication];

    /// Name of the Secret.
    pub fn name(self, names: &Names) -> String {
        match self {
            Self::Ca => names.secret_ca(),
            Self::App => names.secret_app(),
            Self::Superuser => names.secret_superuser(),
            Self::Server => names.secret_server(),
            Self::Replication => names.secret_replication(),
        }
    }
    /// Whether instances mount it.
    pub fn mounted(self) -> bool {
        self != Self::Ca
    }
}

/// One of the cluster's own Secrets, without what is secret in it.
#[derive(Debug, Clone, PartialEq)]
pub struct SecretFacts {
    /// Its metadata; the hash is that of the inputs from which it was made.
    pub meta: ChildMeta,
    /// What is wrong with its content, in words: a key that is missing, a URI that no longer fits the password.
    pub wrong: Option<String>,
    /// Value of the annotation that asked for the present password.
    pub rotated_for: Option<String>,
    /// Its certificate, when it holds one.
    pub certificate: Option<CertificateFacts>,
}

/// A certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Valid from.
    pub from: Timestamp,
    /// Valid until.
    pub until: Timestamp,
    /// Names that it is valid for, sorted.
    pub names: Vec<String>,
    /// Whether the cluster's present authority signed it. For the authority itself: true.
    pub signed_by_ca: bool,
}

impl CertificateFacts {
    /// When it is renewed: after two thirds of its life.
    pub fn renew_at(&self) -> Timestamp {
        let life = self.until.as_second().saturating_sub(self.from.as_second());
        Timestamp::from_second(self.from.as_second().saturating_add(life.saturating_mul(2) / 3)).unwrap_or(self.until)
    }
}

/// A Secret of the user's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserSecret {
    /// Changes with its content.
    pub version: String,
    /// What is wrong with its content, in a sentence.
    pub wrong: Option<String>,
}

/// A HelloBackup.
#[derive(Debug, Clone, PartialEq)]
pub struct BackupFacts {
    /// Its name.
    pub name: String,
    /// Its uid, by which agents and the catalogue know it.
    pub uid: String,
    /// Its version; precondition of writes.
    pub version: String,
    /// Its generation.
    pub generation: i64,
    /// Name of the HelloOperator.
    pub cluster: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The run of the schedule that it was made for ([`crate::api::names::ANNOTATION_RUN`]).
    pub run: Option<String>,
    /// Who should take it.
    pub target: BackupTarget,
    /// Whether it has a status.
    pub reported: bool,
    /// Its status, or that of one of which nothing is known.
    pub status: HelloBackupStatus,
}

/// The scratch Pod that proves a backup.
#[derive(Debug, Clone, PartialEq)]
pub struct VerifyFacts {
    /// Its metadata.
    pub meta: ChildMeta,
    /// How it ended: its result, or why it has none. None: it has not.
    pub ended: Option<Result<VerifyResult, String>>,
    /// What keeps it from running.
    pub trouble: Option<Trouble>,
}

/// Everything that one reconcile knows of one cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// The time.
    pub now: Timestamp,
    /// Image that brings the agent.
    pub agent_image: String,
    /// Where agents send traces.
    pub traces: Option<Collector>,
    /// The object.
    pub object: ObjectFacts,
    /// Whether a bare CRD stands over ours.
    pub crd_degraded: bool,
    /// What the ConfigMap holds: the spec that was last accepted.
    pub config: Known<ClusterConfig>,
    /// Uid of the object that the ConfigMap says was greeted.
    pub greeted: Option<String>,
    /// Children whose metadata says all. A child that is not in the map is absent.
    pub children: Known<BTreeMap<ChildId, ChildMeta>>,
    /// The cluster's own Secrets.
    pub secrets: BTreeMap<SecretKind, Known<SecretFacts>>,
    /// The user's Secrets, by the one that each stands in for. Only those that the spec names.
    pub user_secrets: BTreeMap<SecretKind, Known<UserSecret>>,
    /// The Lease.
    pub lease: Known<LeaseFacts>,
    /// Pods, by ordinal.
    pub pods: Known<BTreeMap<u8, PodFacts>>,
    /// Volumes, by ordinal and kind.
    pub volumes: Known<BTreeMap<(u8, Volume), VolumeFacts>>,
    /// What the agents say, by ordinal; only of Pods that run.
    pub reports: BTreeMap<u8, Known<Report>>,
    /// Whether a bare CRD stands over ours of HelloBackup.
    pub backups_degraded: bool,
    /// The HelloBackups of this cluster.
    pub backups: Known<Vec<BackupFacts>>,
    /// The HelloBackup that `bootstrap.restore.backup` names, where nothing was resolved yet.
    pub restore_from: Known<BackupFacts>,
    /// The scratch Pod that proves a backup.
    pub verify: Known<VerifyFacts>,
    /// What was refused when the last plan was carried out.
    pub failures: Vec<Failure>,
}

/// A step of an earlier plan that could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What the step was about.
    pub child: Option<ChildId>,
    /// What was refused, and why.
    pub trouble: Trouble,
}
