//! What a new cluster begins with: names of objects become places, and what cannot be is refused before anything is made.

use jiff::Timestamp;

use super::Refused;
use crate::api::backup::BackupPhase;
use crate::api::config::RestoreOrder;
use crate::core::cluster::{Cluster, Restore, RestoreFrom};
use crate::core::election::Register;
use crate::core::world::{Known, World};

/// The order for the agents. None: an empty database.
pub(super) fn order(
    world: &World,
    cluster: &Cluster,
    register: Option<&Register>,
) -> Result<Option<RestoreOrder>, Refused> {
    let Some(restore) = &cluster.restore else { return Ok(None) };
    let invalid = |sentence: String| Err(Refused::Invalid(sentence));
    if let Some(text) = &restore.target_time
        && text.parse::<Timestamp>().is_err()
    {
        return invalid(format!("bootstrap.restore.targetTime: there is no such time as {text}"));
    }
    let (namespace, name) = (&world.object.namespace, cluster.names.cluster());
    let (source, root, id) = match &restore.from {
        RestoreFrom::Source(source) => ((**source).clone(), source.root(namespace, name), None),
        RestoreFrom::Backup(backup) => match &world.restore_from {
            Known::Unknown(why) => return Err(Refused::Unknown(why.clone())),
            // It has data already, of whatever it was; only its ConfigMap was lost.
            Known::Absent if register.is_some_and(|register| register.system_id.is_some()) => return Ok(None),
            Known::Absent => {
                return invalid(format!(
                    "bootstrap.restore names HelloBackup {backup}, which does not exist in this namespace: nothing begins until it does"
                ));
            }
            Known::Present(facts) => match (&facts.status.phase, &facts.status.destination) {
                (BackupPhase::Completed, Some(source)) => {
                    (source.clone(), source.root(namespace, &facts.cluster), facts.status.backup_id.clone())
                }
                (phase, _) => {
                    return invalid(format!(
                        "bootstrap.restore names HelloBackup {backup}, which is {phase:?}: nothing begins until it is Completed"
                    ));
                }
            },
        },
    };
    let place = source.place(&root);
    if cluster.backup.destination.as_ref().is_some_and(|own| own.place(&own.root(namespace, name)) == place) {
        return invalid(format!(
            "backup.destination is the very archive that is restored ({place}): give this cluster a path of its own"
        ));
    }
    Ok(Some(targets(
        restore,
        RestoreOrder {
            source,
            root,
            backup_id: restore.backup_id.clone().or(id.filter(|_| !restore.has_target())),
            target_time: None,
            target_lsn: None,
            target_name: None,
            target_timeline: None,
        },
    )))
}

fn targets(restore: &Restore, order: RestoreOrder) -> RestoreOrder {
    RestoreOrder {
        target_time: restore.target_time.clone(),
        target_lsn: restore.target_lsn,
        target_name: restore.target_name.clone(),
        target_timeline: restore.target_timeline,
        ..order
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::accept;
    use super::*;
    use crate::api::backup::HelloBackupStatus;
    use crate::core::plan::testing::empty;
    use crate::core::world::BackupFacts;

    fn facts(phase: BackupPhase) -> BackupFacts {
        BackupFacts {
            name: "nightly".into(),
            uid: "u".into(),
            version: "1".into(),
            generation: 1,
            cluster: "old".into(),
            created: None,
            deleting: false,
            run: None,
            target: crate::api::backup::BackupTarget::default(),
            reported: true,
            status: HelloBackupStatus {
                phase,
                backup_id: Some("b1".into()),
                destination: Some(serde_json::from_value(json!({"s3": {"bucket": "b"}})).unwrap()),
                ..HelloBackupStatus::default()
            },
        }
    }

    fn world(restore: &Value, from: Known<BackupFacts>) -> World {
        let mut world = empty(json!({"bootstrap": {"restore": restore}}));
        world.restore_from = from;
        world
    }

    #[test]
    fn a_backup_by_its_name_becomes_a_place_and_an_id() {
        let named = json!({"backup": "nightly"});
        let order =
            accept(&world(&named, Known::Present(facts(BackupPhase::Completed)))).unwrap().config.restore.unwrap();
        assert_eq!((order.root.as_str(), order.backup_id.as_deref()), ("shop/old", Some("b1")));
        let timed = json!({"backup": "nightly", "targetTime": "2026-11-30T10:01:00Z"});
        let order =
            accept(&world(&timed, Known::Present(facts(BackupPhase::Completed)))).unwrap().config.restore.unwrap();
        assert_eq!(order.backup_id, None, "the last one before the target");
    }

    #[test]
    fn what_cannot_be_is_told_and_nothing_begins() {
        let refused = |world: &World| match accept(world) {
            Err(Refused::Invalid(sentence)) => sentence,
            other => panic!("{other:?}"),
        };
        let named = json!({"backup": "nightly"});
        assert!(refused(&world(&named, Known::Absent)).contains("does not exist"));
        assert!(refused(&world(&named, Known::Present(facts(BackupPhase::Running)))).contains("is Running"));
        let unknown = accept(&world(&named, Known::Unknown("no answer".into())));
        assert_eq!(unknown.unwrap_err(), Refused::Unknown("no answer".into()));
        let day = json!({"backup": "nightly", "targetTime": "2026-02-30T10:01:00Z"});
        assert!(refused(&world(&day, Known::Absent)).contains("no such time"));
        let mut own = empty(json!({
            "backup": {"destination": {"s3": {"bucket": "b"}}},
            "bootstrap": {"restore": {"source": {"s3": {"bucket": "b", "path": "shop/db"}}}},
        }));
        assert!(refused(&own).contains("path of its own"));
        own.object.spec.as_mut().unwrap().backup.destination.as_mut().unwrap().s3.as_mut().unwrap().bucket =
            "other".into();
        assert_eq!(accept(&own).unwrap().config.restore.unwrap().root, "shop/db");
    }
}
