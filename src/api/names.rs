//! Every name, label, annotation, port and path that appears outside this process.
//!
//! Object names are at most [`MAX_NAME`] characters without dots, so that no derived name passes 63 and every one is a
//! DNS label.

/// API group.
pub const GROUP: &str = "terry.com";
/// API version.
pub const VERSION: &str = "v1";
/// Kind.
pub const KIND: &str = "HelloOperator";
/// Name of the CustomResourceDefinition.
pub const CRD_NAME: &str = "helloopperators.terry.com";
/// Kind of a backup.
pub const KIND_BACKUP: &str = "HelloBackup";
/// Name of its CustomResourceDefinition.
pub const CRD_NAME_BACKUP: &str = "hellobackups.terry.com";
/// Longest name of a HelloOperator object.
pub const MAX_NAME: usize = 45;
/// Highest number of instances, and so of an instance's ordinal.
pub const MAX_INSTANCES: u8 = 9;

/// Field manager of the operator's writes.
pub const FIELD_MANAGER: &str = "hello-operator";

/// Label on everything that belongs to a cluster; its value is the object's name.
pub const LABEL_CLUSTER: &str = "terry.com/cluster";
/// Label of a Pod or volume: the instance's name.
pub const LABEL_INSTANCE: &str = "terry.com/instance";
/// Label of the scratch Pod that proves a backup: the object's name. Such a Pod has no [`LABEL_CLUSTER`].
pub const LABEL_VERIFIES: &str = "terry.com/verifies";
/// Label of a Pod, a hint to people: `primary` or `replica`. Decides nothing.
pub const LABEL_ROLE: &str = "terry.com/role";
/// Label of a volume: `data` or `wal`.
pub const LABEL_VOLUME: &str = "terry.com/volume";
/// `app.kubernetes.io/managed-by`.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// `app.kubernetes.io/name`.
pub const LABEL_NAME: &str = "app.kubernetes.io/name";
/// `app.kubernetes.io/instance`.
pub const LABEL_APP_INSTANCE: &str = "app.kubernetes.io/instance";
/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "hello-operator";

/// Annotation: hash of the part of a child that the operator wrote, so that an unchanged child is not written again.
pub const ANNOTATION_HASH: &str = "terry.com/hash";
/// Annotation of a Pod: the inputs of its template as JSON, so that a roll can say what differs.
pub const ANNOTATION_TEMPLATE: &str = "terry.com/template";
/// Annotation of a Pod: changes with the Secrets that are mounted, which makes the kubelet refresh them at once.
pub const ANNOTATION_SECRETS: &str = "terry.com/secrets";
/// Annotation of a HelloOperator: any new value makes new passwords.
pub const ANNOTATION_ROTATE_PASSWORDS: &str = "terry.com/rotate-passwords";
/// Annotation of a HelloOperator: any new value restarts PostgreSQL, replicas first.
pub const ANNOTATION_RESTART: &str = "terry.com/restart";
/// Before the ordinal of an instance, the annotation that restarts this one alone: `terry.com/restart-2`.
pub const ANNOTATION_RESTART_ONE: &str = "terry.com/restart-";
/// Annotation of a HelloOperator: a human accepts that acknowledged writes are lost, so that an election that is blocked at
/// this term can be decided. It counts once: the next term is another.
pub const ANNOTATION_ACCEPT_LOSS: &str = "terry.com/accept-data-loss";
/// Annotation of the Lease: the last hand-over, as JSON ([`crate::api::agent::HandOver`]). For people, events and metrics only.
pub const ANNOTATION_HAND_OVER: &str = "terry.com/hand-over";
/// Annotation of the Lease: the register of the election, as JSON ([`crate::core::election::Register`]).
pub const ANNOTATION_REGISTER: &str = "terry.com/register";
/// Annotation of an EndpointSlice: the term of the holder who wrote it.
pub const ANNOTATION_TERM: &str = "terry.com/term";
/// Annotation of a child ConfigMap: the uid of the object whose "A handler is called" line was logged.
pub const ANNOTATION_GREETED: &str = "terry.com/greeted";

/// Annotation of a HelloBackup that a schedule made: the run, in RFC 3339.
pub const ANNOTATION_RUN: &str = "terry.com/run";

/// Port of PostgreSQL.
pub const PORT_POSTGRES: u16 = 5432;
/// Port of the agent's API (mutual TLS).
pub const PORT_AGENT: u16 = 8443;
/// Port of the agent's `/livez`, `/readyz` and `/metrics` (no client certificate: the kubelet has none).
pub const PORT_HEALTH: u16 = 8081;

/// Name of the database container.
pub const CONTAINER: &str = "postgres";
/// Name of the init container that brings the agent.
pub const CONTAINER_INJECT: &str = "inject";
/// Where the agent's binary stands in the database container.
pub const AGENT_BINARY: &str = "/opt/hello/hello-operator";
/// Mount of the data volume.
pub const DATA_MOUNT: &str = "/var/lib/hello/data";
/// Mount of the WAL volume, when there is one.
pub const WAL_MOUNT: &str = "/var/lib/hello/wal";
/// Mount of the volume that backups go to, when they go to one.
pub const BACKUP_MOUNT: &str = "/var/lib/hello/backup";
/// Mount of the volume that a cluster is restored from, when it is from one.
pub const RESTORE_MOUNT: &str = "/var/lib/hello/restore";
/// Folder of PostgreSQL's unix socket (an emptyDir).
pub const SOCKET_DIR: &str = "/var/run/postgresql";
/// Mounts of the Secrets, one folder each: `tls.crt`, `tls.key`, `ca.crt` or `username`, `password`.
pub const SECRETS_MOUNT: &str = "/etc/hello";
/// Key in the ConfigMap: [`crate::api::config::ClusterConfig`] as JSON.
pub const CONFIG_KEY: &str = "cluster.json";
/// Key in the ConfigMap: the `passwd` file that names the uid of the image's user.
pub const PASSWD_KEY: &str = "passwd";

/// Role in PostgreSQL by which replicas stream; it authenticates by certificate, so this is a common name too.
pub const REPLICATION_USER: &str = "streaming_replica";
/// Common name of the operator's client certificate towards the agents.
pub const OPERATOR_CN: &str = "hello-operator";
/// The superuser's role.
pub const SUPERUSER: &str = "postgres";

/// Names of the children of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    cluster: String,
}

impl Names {
    /// Names of the children of the object `cluster`.
    pub fn new(cluster: impl Into<String>) -> Self {
        Self { cluster: cluster.into() }
    }
    /// The object's own name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }
    fn with(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.cluster)
    }
    /// Pod and data volume of an instance.
    pub fn instance(&self, ordinal: u8) -> String {
        self.with(&ordinal.to_string())
    }
    /// Ordinal of an instance, from its name.
    pub fn ordinal(&self, instance: &str) -> Option<u8> {
        (1..=MAX_INSTANCES).find(|ordinal| self.instance(*ordinal) == instance)
    }
    /// Volume of an instance's WAL.
    pub fn wal_volume(&self, ordinal: u8) -> String {
        format!("{}-{ordinal}-wal", self.cluster)
    }
    /// Service to the primary.
    pub fn service_rw(&self) -> String {
        self.with("rw")
    }
    /// Service to the replicas.
    pub fn service_ro(&self) -> String {
        self.with("ro")
    }
    /// Service to any ready instance.
    pub fn service_r(&self) -> String {
        self.with("r")
    }
    /// Headless Service, for the instances' own names.
    pub fn service_headless(&self) -> String {
        self.cluster.clone()
    }
    /// Secret of the application's user.
    pub fn secret_app(&self) -> String {
        self.with("app")
    }
    /// Secret of the superuser.
    pub fn secret_superuser(&self) -> String {
        self.with("superuser")
    }
    /// Secret of the cluster's own certificate authority.
    pub fn secret_ca(&self) -> String {
        self.with("ca")
    }
    /// Secret of PostgreSQL's server certificate.
    pub fn secret_server(&self) -> String {
        self.with("server")
    }
    /// Secret of the certificate by which members know each other: replication, and the agents' API.
    pub fn secret_replication(&self) -> String {
        self.with("replication")
    }
    /// Lease of the primary: the register of the election.
    pub fn lease(&self) -> String {
        self.with("primary")
    }
    /// ConfigMap of the last accepted spec.
    pub fn config_map(&self) -> String {
        self.with("config")
    }
    /// ServiceAccount, Role and RoleBinding of the agents.
    pub fn agent_account(&self) -> String {
        self.with("agent")
    }
    /// HelloBackup of a run of the schedule: the same whoever makes it, so that two leaders cannot make two.
    pub fn backup(&self, run: jiff::Timestamp) -> String {
        self.with(&run.strftime("%Y%m%d%H%M").to_string())
    }
    /// Scratch Pod that proves a backup.
    pub fn verify_pod(&self) -> String {
        self.with("verify")
    }
    /// PodDisruptionBudget.
    pub fn pdb(&self) -> String {
        self.cluster.clone()
    }
    /// EndpointSlice behind [`Self::service_rw`], written by the holder of the Lease.
    pub fn endpoints_rw(&self) -> String {
        self.with("rw")
    }
    /// EndpointSlice behind [`Self::service_ro`], written by the holder of the Lease.
    pub fn endpoints_ro(&self) -> String {
        self.with("ro")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_derived_name_of_the_longest_cluster_is_a_dns_label() {
        let names = Names::new("a".repeat(MAX_NAME));
        for name in [
            names.instance(9),
            names.wal_volume(9),
            names.service_rw(),
            names.secret_superuser(),
            names.secret_replication(),
            names.lease(),
            names.config_map(),
            names.agent_account(),
            names.backup(jiff::Timestamp::UNIX_EPOCH),
            names.verify_pod(),
        ] {
            assert!(name.len() <= 63, "{name}");
            assert!(!name.contains('.'), "{name}");
        }
    }

    #[test]
    fn an_ordinal_is_read_back_from_an_instance_of_this_cluster_only() {
        let names = Names::new("db");
        assert_eq!(names.ordinal("db-3"), Some(3));
        for other in ["db-0", "db-10", "db-01", "db-+1", "db-rw", "db2-1", "db-1-wal", "db"] {
            assert_eq!(names.ordinal(other), None, "{other}");
        }
    }
}
