//! Whose a destination is: the first who claims it, for good. Two clusters in one destination would each take the other's WAL for its own.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::layout::{FORMAT, OWNER};
use super::store::Created;
use super::{Error, Store};

/// What stands in `owner.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// Version of the layout.
    pub format: u32,
    /// Id of the archive: what decides whether it is ours.
    pub archive: String,
    /// System identifier of the data.
    pub system_identifier: String,
    /// `namespace/name` of the cluster that claimed it; for people.
    pub cluster: String,
    /// When.
    pub created_at: Timestamp,
}

/// Claims a destination. Answers with the claim that stands, which is ours, perhaps from an earlier time; [`Error::OtherOwner`] when
/// it is another archive's.
pub async fn claim(store: &Store, owner: &Owner) -> Result<Owner, Error> {
    let text = serde_json::to_vec_pretty(owner).map_err(|error| Error::Refused(error.to_string()))?;
    let mut retry = 0;
    // Read first: it is there nearly always, and some destinations count writes.
    loop {
        if let Some(standing) = read(store).await? {
            return if standing.archive == owner.archive { Ok(standing) } else { Err(other(store, owner, standing)) };
        }
        match store.create(OWNER, text.clone()).await? {
            Created::New => return Ok(owner.clone()),
            // There, and not readable yet.
            Created::Exists if retry < store.bounds().retries => {
                tokio::time::sleep(store.bounds().pause_before(retry)).await;
                retry += 1;
            }
            Created::Exists => {
                let reason = "it exists and cannot be read".to_owned();
                return Err(Error::Unavailable { at: store.place(OWNER), what: "reading", reason });
            }
        }
    }
}

fn other(store: &Store, owner: &Owner, standing: Owner) -> Error {
    Error::OtherOwner {
        destination: store.to_string(),
        cluster: standing.cluster,
        archive: standing.archive,
        wanted: owner.archive.clone(),
    }
}

/// Whose a destination is; None: nobody's yet.
pub async fn read(store: &Store) -> Result<Option<Owner>, Error> {
    let bytes = match store.get(OWNER).await {
        Ok(bytes) => bytes,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let owner: Owner = serde_json::from_slice(&bytes)
        .map_err(|error| Error::Corrupt { at: store.place(OWNER), detail: error.to_string() })?;
    if owner.format > FORMAT {
        return Err(Error::Refused(format!(
            "{} has format {}, and this version knows only {FORMAT}: update the operator",
            store.place(OWNER),
            owner.format
        )));
    }
    Ok(Some(owner))
}
