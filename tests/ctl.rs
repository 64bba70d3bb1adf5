//! What `kubectl hello` shows, as golden files: `UPDATE_GOLDEN=1` writes them. And the manifest of krew, against the crate.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows these in tests, but does not see that helpers here are tests too"
)]

use std::path::Path;

use hello_operator::api::backup::HelloBackup;
use hello_operator::api::spec::HelloOperator;
use hello_operator::ctl::view::{Paint, next, status, why};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use serde_json::{Value, json};

const PLAIN: Paint = Paint::PLAIN;

fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ctl").join(name);
    #[expect(clippy::disallowed_methods, reason = "a test's own switch")]
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    if update {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{name}; UPDATE_GOLDEN=1 accepts it");
}

fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": 4,
        "lastTransitionTime": "2026-11-30T10:00:05Z"})
}

/// A cluster that is well.
fn healthy() -> Value {
    json!({
        "apiVersion": "terry.com/v1", "kind": "HelloOperator",
        "metadata": {"name": "db", "namespace": "shop", "generation": 4},
        "spec": {"backup": {"destination": {"s3": {"bucket": "b"}}}},
        "status": {
            "observedGeneration": 4, "phase": "Ready", "ready": "3/3", "instanceCount": 3, "readyInstances": 3,
            "conditions": [
                condition("Ready", "True", "Ready", "3 of 3 instances are ready"),
                condition("Progressing", "False", "Settled", "nothing is to be done"),
                condition("Degraded", "False", "Healthy", "nothing is wrong"),
                condition("WriteAvailable", "True", "Primary", "db-1 takes writes"),
                condition("BackupHealthy", "True", "Healthy", "the last good backup is nightly"),
            ],
            "primary": {"instance": "db-1", "term": 7, "timeline": 3, "since": "2026-11-30T10:00:00Z"},
            "election": {"term": 7, "phase": "Held"},
            "lastFailover": {"term": 7, "from": "db-2", "to": "db-1", "reason": "switchover",
                "startedAt": "2026-11-30T09:59:59Z", "durationSeconds": 1.2},
            "replication": {"durability": "Quorum", "rules": ["ANY 1 (db-2, db-3)"], "confirmed": true},
            "instances": [
                {"name": "db-1", "role": "primary", "ready": true, "joined": true, "timeline": 3, "lagBytes": 0, "node": "node1"},
                {"name": "db-2", "role": "replica", "ready": true, "joined": true, "timeline": 3, "lagBytes": 99, "node": "node2",
                    "rejoined": {"how": "Rewound", "at": "2026-11-30T10:00:03Z", "reason": "its history left"}},
                {"name": "db-3", "role": "replica", "ready": true, "joined": true, "timeline": 3, "lagBytes": 5_000_000, "node": "node3"},
            ],
            "backup": {
                "lastSuccessful": {"name": "nightly", "backupId": "20261130T030000Z-0a1b2c3d", "completedAt": "2026-11-30T03:01:00Z"},
                "firstRecoverable": "2026-11-28T03:01:00Z", "lastArchivedAt": "2026-11-30T11:59:30Z",
                "nextRun": "2026-12-01T03:00:00Z", "nextVerification": "2026-12-06T06:00:00Z",
                "expiring": [{"backupId": "20261128T030000Z-00000000", "reason": "7 newer ones are kept"}],
            },
        },
    })
}

/// The same, with its primary lost and nobody who may take over.
fn blocked() -> Value {
    let mut object = healthy();
    object["spec"]["primary"] = json!("db-1");
    let status = &mut object["status"];
    status["phase"] = json!("Degraded");
    status["ready"] = json!("1/3");
    status["conditions"] = json!([
        condition("Ready", "False", "ElectionBlocked", "1 of 3 instances are ready"),
        condition("Progressing", "True", "Starting", "waits until db-1 is ready"),
        condition("Degraded", "True", "Unschedulable", "no node can run db-2: 0/3 nodes are available"),
        condition("WriteAvailable", "False", "ElectionBlocked", "nobody may take over: db-2 is missing"),
        condition("BackupHealthy", "False", "ArchiveFailing", "WAL waits on the disk since 11:50"),
    ]);
    status["replication"]["confirmed"] = json!(false);
    status["instances"][0] = json!({"name": "db-1", "role": "", "ready": false, "message": "its node does not answer"});
    status["instances"][1] = json!({"name": "db-2", "role": "replica", "ready": false, "joined": true,
        "message": "no node can run it"});
    object
}

fn object(value: Value) -> HelloOperator {
    serde_json::from_value(value).unwrap()
}

fn lease(renewed: &str) -> Lease {
    serde_json::from_value(json!({"metadata": {"name": "db-primary"}, "spec": {"holderIdentity": "db-1/uid/nonce",
        "renewTime": renewed, "leaseDurationSeconds": 15}}))
    .unwrap()
}

fn seen(value: Value, renewed: &str) -> status::Seen {
    let lag = [("db-2".to_owned(), 0), ("db-3".to_owned(), 2_000_000)].into();
    status::Seen { now: now(), object: object(value), lease: Ok(Some(lease(renewed))), backups: Ok(Vec::new()), lag }
}

fn event(kind: &str, name: &str, at: &str, reason: &str, note: &str) -> Event {
    serde_json::from_value(json!({"metadata": {}, "involvedObject": {"kind": kind, "name": name}, "eventTime": at,
        "reason": reason, "message": note, "type": "Normal"}))
    .unwrap()
}

#[test]
fn status_of_a_cluster_that_is_well() {
    let mut seen = seen(healthy(), "2026-11-30T11:59:59.000000Z");
    let running = json!({"apiVersion": "terry.com/v1", "kind": "HelloBackup", "metadata": {"name": "by-hand"},
        "spec": {"cluster": "db"}, "status": {"phase": "Running", "instance": "db-2", "progress": "41% of 3 GiB"}});
    seen.backups = Ok(vec![serde_json::from_value::<HelloBackup>(running).unwrap()]);
    golden("status-healthy.txt", &status::text(&seen, PLAIN));
    golden("status-healthy.json", &format!("{:#}\n", serde_json::to_value(status::view(&seen)).unwrap()));
}

#[test]
fn status_of_a_cluster_that_takes_no_writes() {
    let mut seen = seen(blocked(), "2026-11-30T11:50:00.000000Z");
    seen.lag.clear();
    seen.backups = Err("forbidden".into());
    golden("status-blocked.txt", &status::text(&seen, PLAIN));
}

#[test]
fn status_of_an_object_that_nobody_has_looked_at() {
    let mut new = healthy();
    new["status"] = Value::Null;
    let mut seen = seen(new, "2026-11-30T11:59:59.000000Z");
    seen.lease = Err("leases.coordination.k8s.io \"db-primary\" is forbidden".into());
    golden("status-new.txt", &status::text(&seen, PLAIN));
}

#[test]
fn a_status_that_is_older_than_the_lease_says_so() {
    let mut old = healthy();
    old["status"]["primary"]["instance"] = json!("db-2");
    let text = status::text(&seen(old, "2026-11-30T11:59:59.000000Z"), PLAIN);
    assert!(text.contains("the Lease says that db-1 is primary, and the status still says db-2"), "{text}");
}

#[test]
fn a_spec_that_was_not_looked_at_yet_is_told() {
    let mut newer = healthy();
    newer["metadata"]["generation"] = json!(5);
    let text = next::text(&object(newer), now(), PLAIN);
    assert!(text.contains("at work") && text.contains("has not looked at the last change"), "{text}");
}

#[test]
fn why_is_in_order_of_time() {
    let mut warning =
        event("HelloBackup", "nightly", "2026-11-30T09:00:00.000000Z", "BackupFailed", "nightly: no space");
    warning.type_ = Some("Warning".into());
    warning.series =
        serde_json::from_value(json!({"count": 3, "lastObservedTime": "2026-11-30T11:00:00.000000Z"})).unwrap();
    let mut restart =
        event("HelloOperator", "db", "2026-11-30T09:59:58.000000Z", "Restarting", "db-2 restarts: asked for");
    restart.related = serde_json::from_value(json!({"kind": "Pod", "name": "db-2"})).unwrap();
    let events = [
        warning,
        event(
            "HelloOperator",
            "db",
            "2026-11-30T10:00:01.000000Z",
            "HandOverCompleted",
            "db-1 is primary in place of db-2",
        ),
        restart,
    ];
    let entries = why::entries(&object(blocked()), &events);
    golden("why.txt", &why::text(&entries, Some("events of Pods cannot be listed"), PLAIN));
    golden("why.json", &format!("{:#}\n", serde_json::to_value(&entries).unwrap()));
    let order: Vec<Timestamp> = entries.iter().map(|entry| entry.at).collect();
    assert!(order.is_sorted() && order.len() == 8, "{order:?}");
}

#[test]
fn plan_says_what_the_operator_says() {
    golden("plan-settled.txt", &next::text(&object(healthy()), now(), PLAIN));
    golden("plan-blocked.txt", &next::text(&object(blocked()), now(), PLAIN));
    golden("plan-blocked.json", &format!("{:#}\n", serde_json::to_value(next::next(&object(blocked()))).unwrap()));
}

#[test]
fn colours_change_nothing_but_colours() {
    let seen = seen(blocked(), "2026-11-30T11:50:00.000000Z");
    let painted = status::text(&seen, Paint::new(true));
    assert!(painted.contains("\u{1b}[31m"));
    let mut plain = String::new();
    for (number, part) in painted.split('\u{1b}').enumerate() {
        plain.push_str(if number == 0 { part } else { part.split_once('m').unwrap().1 });
    }
    assert_eq!(plain, status::text(&seen, PLAIN));
}

#[test]
fn the_manifest_of_krew_is_of_this_version() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/krew/hello.yaml");
    let manifest: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(manifest["metadata"]["name"], hello_operator::ctl::PLUGIN.strip_prefix("kubectl-").unwrap());
    assert_eq!(manifest["spec"]["version"], version.as_str());
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    assert!(!platforms.is_empty());
    for platform in platforms {
        assert_eq!(platform["bin"], hello_operator::ctl::PLUGIN);
        let (os, arch) = (&platform["selector"]["matchLabels"]["os"], &platform["selector"]["matchLabels"]["arch"]);
        let uri = platform["uri"].as_str().unwrap();
        assert!(uri.contains(&format!("/{version}/")), "{uri}");
        assert!(uri.ends_with(&format!("{}-{}.tar.gz", os.as_str().unwrap(), arch.as_str().unwrap())), "{uri}");
    }
}
