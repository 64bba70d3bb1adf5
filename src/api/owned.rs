//! The settings of PostgreSQL that the operator owns, and what a user writes instead. They are part of the contract:
//! the API server refuses each of them by name.

/// A setting that the operator owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// The setting.
    pub name: &'static str,
    /// What to do instead.
    pub instead: &'static str,
}

impl Owned {
    const fn new(name: &'static str, instead: &'static str) -> Self {
        Self { name, instead }
    }
    /// What the user is told.
    pub fn sentence(&self) -> String {
        format!("{} belongs to the operator: remove it, and {}", self.name, self.instead)
    }
}

const NOTHING: &str = "let the operator set it";

/// All of them.
pub const OWNED: [Owned; 42] = [
    Owned::new("allow_alter_system", NOTHING),
    Owned::new("archive_cleanup_command", NOTHING),
    Owned::new("archive_command", "set a backup destination when there is one"),
    Owned::new("archive_library", "set a backup destination when there is one"),
    Owned::new("archive_mode", "set a backup destination when there is one"),
    Owned::new("cluster_name", NOTHING),
    Owned::new("config_file", NOTHING),
    Owned::new("data_directory", NOTHING),
    Owned::new("event_source", NOTHING),
    Owned::new("external_pid_file", NOTHING),
    Owned::new("fsync", "leave it on: without it a crash loses data"),
    Owned::new("full_page_writes", "leave it on: without it a crash corrupts data"),
    Owned::new("hba_file", "use spec.postgresql.hba"),
    Owned::new("hot_standby", NOTHING),
    Owned::new("ident_file", NOTHING),
    Owned::new("listen_addresses", "use spec.services"),
    Owned::new("log_destination", "read the Pod's log, where every line of PostgreSQL is"),
    Owned::new("log_directory", "read the Pod's log, where every line of PostgreSQL is"),
    Owned::new("log_filename", "read the Pod's log, where every line of PostgreSQL is"),
    Owned::new("logging_collector", "read the Pod's log, where every line of PostgreSQL is"),
    Owned::new("port", "use port 5432"),
    Owned::new("primary_conninfo", NOTHING),
    Owned::new("primary_slot_name", NOTHING),
    Owned::new("promote_trigger_file", NOTHING),
    Owned::new("recovery_end_command", NOTHING),
    Owned::new("recovery_min_apply_delay", NOTHING),
    Owned::new("recovery_target_timeline", NOTHING),
    Owned::new("restart_after_crash", NOTHING),
    Owned::new("restore_command", NOTHING),
    Owned::new("ssl", "connect with TLS, which is always on"),
    Owned::new("ssl_ca_file", "use spec.certificates.server"),
    Owned::new("ssl_cert_file", "use spec.certificates.server"),
    Owned::new("ssl_crl_file", "use spec.certificates.server"),
    Owned::new("ssl_key_file", "use spec.certificates.server"),
    Owned::new("sync_replication_slots", NOTHING),
    Owned::new("synchronous_standby_names", "use spec.replication"),
    Owned::new("syslog_facility", "read the Pod's log, where every line of PostgreSQL is"),
    Owned::new("unix_socket_directories", "connect over the network"),
    Owned::new("unix_socket_group", "connect over the network"),
    Owned::new("unix_socket_permissions", "connect over the network"),
    Owned::new("wal_level", "use logical replication as it is: the level is always logical"),
    Owned::new("wal_log_hints", "leave it on: a rejoin needs it"),
];

/// The entry of a setting, if the operator owns it.
pub fn find(name: &str) -> Option<&'static Owned> {
    OWNED.iter().find(|owned| owned.name == name)
}
