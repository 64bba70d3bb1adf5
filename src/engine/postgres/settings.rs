//! postgresql.conf: what we choose, what the user chooses, and what nobody may change.

use std::collections::BTreeMap;

use super::control::Critical;
use super::{Major, quote};
use crate::api::owned;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// Settings that follow from the container and its volumes, where the user chose nothing.
///
/// `memory` is the container's limit in bytes (0: none, then everything is fixed); `wal_volume` the size of the volume
/// that holds the WAL.
pub fn derived(memory: u64, wal_volume: u64, max_connections: u64) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        out.insert(name.to_owned(), value);
    };
    let (shared, cache, work, maintenance) = if memory == 0 {
        (128 * MIB, 512 * MIB, 4 * MIB, 64 * MIB)
    } else {
        let shared = (memory / 4).max(16 * MIB);
        let left = memory.saturating_sub(shared);
        (
            shared,
            (memory / 4 * 3).max(32 * MIB),
            // Each of all connections may sort with this much and something must be left for the page cache.
            (left / (3 * max_connections.max(1))).clamp(MIB, 256 * MIB),
            (memory / 16).clamp(16 * MIB, 2 * GIB),
        )
    };
    set("shared_buffers", kib(shared));
    set("effective_cache_size", kib(cache));
    set("work_mem", kib(work));
    set("maintenance_work_mem", kib(maintenance));
    // A volume of WAL must hold what a checkpoint keeps, what a slot keeps, and room to work.
    set("max_wal_size", megabytes((wal_volume / 8).clamp(80 * MIB, 4 * GIB)));
    set("min_wal_size", megabytes((wal_volume / 32).clamp(32 * MIB, GIB)));
    // A base backup begins with a checkpoint and only then protects its WAL by its slot: others that begin at the same time
    // must not recycle it in between.
    set("wal_keep_size", megabytes((wal_volume / 16).clamp(32 * MIB, GIB)));
    set("max_slot_wal_keep_size", megabytes((wal_volume / 4).max(128 * MIB)));
    out
}

/// Settings that we choose and the user may change.
pub fn defaults() -> BTreeMap<String, String> {
    [
        ("max_connections", "100"),
        // Named even where they are the defaults: a replica names them, and one that goes from the file waits for a restart.
        ("max_locks_per_transaction", "64"),
        ("max_prepared_transactions", "0"),
        ("max_worker_processes", "16"),
        ("max_wal_senders", "32"),
        ("max_replication_slots", "32"),
        // A dead peer is noticed in seconds; by default it takes a minute.
        ("wal_sender_timeout", "10s"),
        ("wal_receiver_timeout", "10s"),
        ("wal_receiver_status_interval", "1s"),
        ("wal_retrieve_retry_interval", "1s"),
        ("password_encryption", "scram-sha-256"),
        ("log_line_prefix", "%m [%p] %q%u@%d "),
        ("log_checkpoints", "on"),
        ("log_lock_waits", "on"),
        ("tcp_keepalives_idle", "30"),
        ("tcp_keepalives_interval", "5"),
        ("tcp_keepalives_count", "4"),
        ("timezone", "UTC"),
        ("log_timezone", "UTC"),
        ("wal_compression", "on"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

/// What only the agent knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// Version of the data directory.
    pub major: Major,
    /// Name of the instance, shown in the process titles.
    pub instance: String,
    /// Folder of the unix socket.
    pub socket_dir: String,
    /// Port of the clients.
    pub port: u16,
    /// Files of TLS.
    pub tls: Tls,
    /// How it takes part in replication.
    pub role: Role,
    /// Whether transactions begin read-only, because its volume is full. Whoever wants to free room turns that off for a session.
    pub read_only: bool,
    /// How its WAL is archived.
    pub archiving: Archiving,
}

/// How WAL is archived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archiving {
    /// archive_command. `true` is the program that does nothing: WAL goes nowhere.
    pub command: String,
    /// Seconds after which a segment is closed although it is not full; 0: never.
    pub timeout: i32,
}

impl Archiving {
    /// Nowhere.
    pub fn none() -> Self {
        Self { command: "true".into(), timeout: 0 }
    }
}

/// Files of TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Server certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// Authority of the certificates by which replicas log in.
    pub client_ca: String,
}

/// How an instance takes part in replication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Takes writes.
    Primary {
        /// synchronous_standby_names; empty where a commit waits for nobody.
        sync: String,
    },
    /// Follows; without an upstream it waits.
    Standby {
        /// primary_conninfo and primary_slot_name.
        upstream: Option<(String, String)>,
        /// Settings in the control file, below which replay would stop.
        critical: Option<Critical>,
    },
}

/// The whole of postgresql.conf.
///
/// `chosen` are the user's settings; the ones that the operator owns are left out, should they ever get here.
pub fn render(
    derived: &BTreeMap<String, String>,
    chosen: &BTreeMap<String, String>,
    own: &Own,
) -> BTreeMap<String, String> {
    let mut all = defaults();
    all.extend(derived.iter().map(|(name, value)| (name.clone(), value.clone())));
    all.extend(
        chosen
            .iter()
            .filter(|(name, _)| owned::find(name).is_none())
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    let mut set = |name: &str, value: &str| {
        all.insert(name.to_owned(), value.to_owned());
    };
    set("listen_addresses", "*");
    set("port", &own.port.to_string());
    set("unix_socket_directories", &own.socket_dir);
    set("unix_socket_permissions", "0700");
    set("cluster_name", &own.instance);
    set("ssl", "on");
    set("ssl_cert_file", &own.tls.certificate);
    set("ssl_key_file", &own.tls.key);
    set("ssl_ca_file", &own.tls.client_ca);
    set("log_destination", "stderr");
    set("logging_collector", "off");
    set("wal_level", "logical");
    set("wal_log_hints", "on");
    set("hot_standby", "on");
    set("fsync", "on");
    set("full_page_writes", "on");
    set("recovery_target_timeline", "latest");
    // Always on, because only a restart could turn it on; and on replicas too, because nobody else archives what a primary
    // streamed and did not archive before it died.
    set("archive_mode", "always");
    set("archive_command", &own.archiving.command);
    set("archive_timeout", &format!("{}s", own.archiving.timeout));
    // A crash of a backend ends the postmaster: the agent decides whether, and as what, it starts again.
    set("restart_after_crash", "off");
    if own.major.has_allow_alter_system() {
        set("allow_alter_system", "off");
    }
    if own.read_only {
        set("default_transaction_read_only", "on");
    }
    match &own.role {
        Role::Primary { sync } => {
            set("synchronous_standby_names", sync);
            set("primary_conninfo", "");
            set("primary_slot_name", "");
        }
        Role::Standby { upstream, critical } => {
            let (conninfo, slot) = upstream.as_ref().map_or(("", ""), |(conninfo, slot)| (conninfo, slot));
            set("synchronous_standby_names", "");
            set("primary_conninfo", conninfo);
            set("primary_slot_name", slot);
            if let Some(critical) = critical {
                for (name, least) in critical.pairs() {
                    let current = all.get(name).and_then(|value| value.parse::<u32>().ok()).unwrap_or(0);
                    if least > current {
                        all.insert(name.to_owned(), least.to_string());
                    }
                }
            }
        }
    }
    all
}

/// The file's text.
pub fn text(settings: &BTreeMap<String, String>) -> String {
    let mut out =
        String::from("# Written by the agent of Hello Operator: changes are lost. Use spec.postgresql.parameters.\n");
    for (name, value) in settings {
        out.push_str(name);
        out.push_str(" = ");
        out.push_str(&quote::setting(value));
        out.push('\n');
    }
    out
}

fn kib(bytes: u64) -> String {
    format!("{}kB", bytes / KIB)
}

fn megabytes(bytes: u64) -> String {
    format!("{}MB", bytes / MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(role: Role) -> Own {
        Own {
            major: Major(17),
            instance: "db-1".into(),
            socket_dir: "/run".into(),
            port: 5432,
            tls: Tls { certificate: "/c".into(), key: "/k".into(), client_ca: "/ca".into() },
            role,
            read_only: false,
            archiving: Archiving::none(),
        }
    }

    #[test]
    fn memory_settings_follow_the_limit_and_are_fixed_without_one() {
        let of = |memory| derived(memory, 10 * GIB, 100);
        assert_eq!(of(0).get("shared_buffers").map(String::as_str), Some("131072kB"));
        let four = of(4 * GIB);
        assert_eq!(four.get("shared_buffers").map(String::as_str), Some("1048576kB"));
        assert_eq!(four.get("work_mem").map(String::as_str), Some("10485kB"));
        assert_eq!(four.get("max_slot_wal_keep_size").map(String::as_str), Some("2560MB"));
        // A tiny volume: nothing below what PostgreSQL takes (two segments).
        assert_eq!(derived(0, 64 * MIB, 100).get("min_wal_size").map(String::as_str), Some("32MB"));
    }

    #[test]
    fn the_user_overrides_defaults_but_nothing_that_is_owned() {
        let chosen = BTreeMap::from([
            ("max_connections".to_owned(), "300".to_owned()),
            ("fsync".to_owned(), "off".to_owned()),
            ("search_path".to_owned(), "'a', b\\".to_owned()),
        ]);
        let all = render(&derived(0, GIB, 300), &chosen, &own(Role::Primary { sync: r#"ANY 1 ("a")"#.into() }));
        let text = text(&all);
        for line in [
            "max_connections = '300'",
            "fsync = 'on'",
            r"search_path = '''a'', b\\'",
            r#"synchronous_standby_names = 'ANY 1 ("a")'"#,
            "allow_alter_system = 'off'",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }

    #[test]
    fn alter_system_is_not_named_where_it_cannot_be_turned_off() {
        let mut own = own(Role::Primary { sync: String::new() });
        own.major = Major(16);
        assert!(!render(&BTreeMap::new(), &BTreeMap::new(), &own).contains_key("allow_alter_system"));
    }

    #[test]
    fn on_a_full_volume_transactions_begin_read_only_whatever_the_user_chose() {
        let chosen = BTreeMap::from([("default_transaction_read_only".to_owned(), "off".to_owned())]);
        let of = |read_only| {
            let own = Own { read_only, ..own(Role::Primary { sync: String::new() }) };
            render(&BTreeMap::new(), &chosen, &own).get("default_transaction_read_only").cloned()
        };
        assert_eq!((of(true).as_deref(), of(false).as_deref()), (Some("on"), Some("off")));
    }

    #[test]
    fn a_standby_never_goes_below_what_its_primary_had() {
        let critical = Critical {
            max_connections: 500,
            max_worker_processes: 8,
            max_wal_senders: 32,
            max_prepared_transactions: 10,
            max_locks_per_transaction: 64,
        };
        let all = render(
            &BTreeMap::new(),
            &BTreeMap::new(),
            &own(Role::Standby { upstream: None, critical: Some(critical) }),
        );
        assert_eq!(all.get("max_connections").map(String::as_str), Some("500"));
        assert_eq!(all.get("max_worker_processes").map(String::as_str), Some("16"));
        assert_eq!(all.get("max_prepared_transactions").map(String::as_str), Some("10"));
        assert_eq!(all.get("max_locks_per_transaction").map(String::as_str), Some("64"));
        assert_eq!(all.get("primary_conninfo").map(String::as_str), Some(""));
    }
}
