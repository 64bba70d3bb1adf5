//! `backup`: a HelloBackup, and its progress.

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::PostParams;

use super::error::{Error, call};
use super::session::{Session, answer, tell};
use super::view::bytes;
use super::wait::{Look, until};
use crate::api::backup::{BackupPhase, BackupTarget, HelloBackup, HelloBackupSpec};
use crate::api::spec::{HelloOperator, State};
use crate::config::ctl::BackupArgs;

/// Takes a backup.
pub async fn backup(session: &Session, args: &BackupArgs) -> Result<(), Error> {
    let object = session.read(&args.name).await?.object;
    possible(&object)?;
    let called = args.called.clone().unwrap_or_else(|| name(&args.name, Timestamp::now()));
    let target = if args.primary { BackupTarget::Primary } else { BackupTarget::PreferReplica };
    let wanted = HelloBackup::new(&called, HelloBackupSpec { cluster: args.name.clone(), target });
    let backups = session.api::<HelloBackup>();
    let made =
        call(format!("HelloBackup {called} cannot be made"), backups.create(&PostParams::default(), &wanted)).await?;
    let called = made.name_any();
    if !args.wait {
        return answer(&format!("HelloBackup {called} is made; kubectl get hellobk {called} shows its progress\n"));
    }
    tell(&format!("HelloBackup {called} is made"));
    let what = format!("HelloBackup {called} was not complete");
    let done = until(backups, &called, &what, args.timeout, |backup: &HelloBackup| {
        let status = backup.status.clone().unwrap_or_default();
        let words = status.progress.clone().or_else(|| status.message.clone());
        match status.phase {
            BackupPhase::Completed => Look::Done(status),
            BackupPhase::Failed => Look::Never(format!("HelloBackup {called} failed: {}", words.unwrap_or_default())),
            BackupPhase::Running => {
                let by = status.instance.unwrap_or_default();
                Look::Still(format!("{by} takes it: {}", words.unwrap_or_else(|| "it begins".into())))
            }
            BackupPhase::Pending => Look::Still(words.unwrap_or_else(|| "waits for the operator".into())),
        }
    })
    .await?;
    let size = |number: Option<i64>| number.map_or_else(|| "?".to_owned(), bytes);
    answer(&format!(
        "HelloBackup {called} is complete: {} of data, {} in the store, as {} in {}\n",
        size(done.total_bytes),
        size(done.stored_bytes),
        done.backup_id.unwrap_or_default(),
        done.path.unwrap_or_default(),
    ))
}

/// Whether a backup would go anywhere, and begin.
fn possible(object: &HelloOperator) -> Result<(), Error> {
    let name = object.name_any();
    if object.spec.backup.destination.is_none() {
        return Err(Error::Refused(format!(
            "{name} has no spec.backup.destination, so a backup would go nowhere: say first where to (docs/backup.md)"
        )));
    }
    match object.spec.state {
        State::Running => Ok(()),
        state => Err(Error::Refused(format!(
            "{name} is {state:?}, so nobody would take a backup: kubectl hello resume {name}"
        ))),
    }
}

/// A name that the schedule does not use: its own have no seconds.
fn name(cluster: &str, now: Timestamp) -> String {
    format!("{cluster}-{}", now.strftime("%Y%m%d%H%M%S"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::names::{MAX_NAME, Names};

    #[test]
    fn a_backup_that_cannot_be_is_refused_in_words() {
        let object = |spec| -> HelloOperator {
            serde_json::from_value(json!({"apiVersion": "terry.com/v1", "kind": "HelloOperator",
                "metadata": {"name": "db"}, "spec": spec}))
            .unwrap()
        };
        let refused = possible(&object(json!({}))).unwrap_err().to_string();
        assert!(refused.contains("no spec.backup.destination"), "{refused}");
        let store = json!({"destination": {"s3": {"bucket": "b"}}});
        let refused = possible(&object(json!({"state": "Hibernated", "backup": store}))).unwrap_err().to_string();
        assert!(refused.contains("db is Hibernated"), "{refused}");
        assert!(possible(&object(json!({"backup": store}))).is_ok());
    }

    #[test]
    fn its_name_is_no_name_of_the_schedule() {
        let (cluster, now) = ("a".repeat(MAX_NAME), Timestamp::UNIX_EPOCH);
        assert_ne!(name(&cluster, now), Names::new(cluster.as_str()).backup(now));
        assert!(name(&cluster, now).len() <= 63);
    }
}
