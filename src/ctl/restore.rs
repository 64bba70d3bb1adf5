//! `restore`: a new object that begins with the archive of another one.

use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};

use super::error::{Error, call};
use super::session::{Session, answer};
use super::view::restore::{Wish, object};
use crate::api::backup::{BackupPhase, HelloBackup};
use crate::api::spec::HelloOperator;
use crate::config::ctl::RestoreArgs;

/// Makes it.
pub async fn restore(session: &Session, args: RestoreArgs) -> Result<(), Error> {
    let source = session.read(&args.from).await?.raw;
    if let Some(backup) = &args.backup {
        usable(session, backup, &args.from).await?;
    }
    let wish = Wish {
        new: args.new,
        namespace: session.namespace.clone(),
        from: args.from,
        backup: args.backup,
        time: args.time,
        lsn: args.lsn,
        point: args.point,
    };
    let spec = source.data.get("spec").cloned().unwrap_or_default();
    let wanted = object(&spec, &wish).map_err(Error::Refused)?;
    if args.dry_run {
        return answer(&serde_saphyr::to_string(&wanted).map_err(|error| Error::Refused(error.to_string()))?);
    }
    let body: DynamicObject = serde_json::from_value(wanted).map_err(|error| Error::Refused(error.to_string()))?;
    let objects: Api<DynamicObject> =
        Api::namespaced_with(session.client.clone(), &session.namespace, &ApiResource::erase::<HelloOperator>(&()));
    let what = format!("HelloOperator {} cannot be made", wish.new);
    call(what, objects.create(&PostParams::default(), &body)).await?;
    answer(&format!(
        "HelloOperator {new} is made and begins with the archive of {from}; its own archive is {namespace}/{new} in the same destination. kubectl hello status {new} shows how far it is\n",
        new = wish.new,
        from = wish.from,
        namespace = wish.namespace,
    ))
}

/// Whether a backup can be restored, and is of this cluster.
async fn usable(session: &Session, name: &str, cluster: &str) -> Result<(), Error> {
    let backup = call(format!("HelloBackup {name} cannot be read"), session.api::<HelloBackup>().get(name)).await?;
    if backup.spec.cluster != cluster {
        return Err(Error::Refused(format!("HelloBackup {name} is one of {}, not of {cluster}", backup.spec.cluster)));
    }
    match backup.status.map(|status| status.phase).unwrap_or_default() {
        BackupPhase::Completed => Ok(()),
        phase => Err(Error::Refused(format!("HelloBackup {name} is {phase:?}: only a Completed one can be restored"))),
    }
}
