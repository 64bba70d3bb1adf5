//! From a destination in the spec to a store: the credentials are read from their Secrets, again and again.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::{Api, Client};
use tokio::sync::Mutex;

use crate::agent::Error;
use crate::agent::lease::call;
use crate::agent::process::boottime;
use crate::api::spec::{Destination, SecretKey};
use crate::backup::store::Store;
use crate::backup::target::{
    Azure, AzureCredentials, CloudIdentity, Gcs, GcsCredentials, S3, S3Credentials, Secret, Target,
};
use crate::core::election::Boot;

/// A Secret is read again after this: its owner may have changed it.
const SECRETS_EVERY: Duration = Duration::from_mins(1);

/// Opens stores, and keeps the one that was opened last for as long as nothing about it changes.
pub struct Stores {
    secrets: Api<KubeSecret>,
    cloud: CloudIdentity,
    opened: Mutex<BTreeMap<String, Opened>>,
}

struct Opened {
    destination: Destination,
    target: Target,
    store: Store,
    read_at: Boot,
}

impl Stores {
    /// With the Secrets of this namespace.
    pub fn new(client: Client, namespace: &str, cloud: CloudIdentity) -> Self {
        Self { secrets: Api::namespaced(client, namespace), cloud, opened: Mutex::default() }
    }

    /// The store of a destination; `mount` is where a volume destination is mounted.
    ///
    /// When the API server is away, the credentials that were read last serve on.
    pub async fn open(&self, destination: &Destination, root: &str, mount: &Path) -> Result<Store, Error> {
        let key = format!("{}:{root}", mount.display());
        let mut all = self.opened.lock().await;
        let known = all.get(&key).filter(|opened| opened.destination == *destination);
        if let Some(opened) = known.filter(|opened| boottime().saturating_sub(opened.read_at) < SECRETS_EVERY) {
            return Ok(opened.store.clone());
        }
        let target = match self.target(destination, mount).await {
            Ok(target) => target,
            Err(Error::Api { .. } | Error::Timeout(_)) if known.is_some() => {
                return known.map(|opened| opened.store.clone()).ok_or_else(|| invalid("nothing was opened"));
            }
            Err(error) => return Err(error),
        };
        let store = match known.filter(|opened| opened.target == target) {
            Some(opened) => opened.store.clone(),
            None => Store::open(&target, root)?,
        };
        let opened = Opened { destination: destination.clone(), target, store: store.clone(), read_at: boottime() };
        all.insert(key, opened);
        Ok(store)
    }

    /// The credentials were refused: they are read again before the next use.
    pub async fn distrust(&self) {
        for opened in self.opened.lock().await.values_mut() {
            opened.read_at = Duration::ZERO;
        }
    }

    async fn target(&self, destination: &Destination, mount: &Path) -> Result<Target, Error> {
        if let Some(s3) = &destination.s3 {
            let credentials = match &s3.credentials {
                None => S3Credentials::Identity(self.cloud.aws.clone()),
                Some(keys) => {
                    let secret = self.secret(&keys.secret).await?;
                    let token = keys.session_token.as_deref();
                    S3Credentials::Key {
                        access_key_id: value(&keys.secret, &secret, &keys.access_key_id)?,
                        secret_access_key: value(&keys.secret, &secret, &keys.secret_access_key)?.into(),
                        session_token: match token {
                            Some(key) => Some(value(&keys.secret, &secret, key)?.into()),
                            None => None,
                        },
                    }
                }
            };
            let ca = match &s3.ca {
                Some(key) => Some(self.key(key).await?),
                None => None,
            };
            return Ok(Target::S3(S3 {
                bucket: s3.bucket.clone(),
                endpoint: s3.endpoint.clone(),
                region: Some(s3.region.clone()),
                credentials,
                ca,
                path_style: s3.force_path_style.unwrap_or(s3.endpoint.is_some()),
            }));
        }
        if let Some(gcs) = &destination.gcs {
            let credentials = match &gcs.credentials {
                Some(key) => GcsCredentials::ServiceAccount(Secret::from(self.key(key).await?)),
                None => GcsCredentials::Identity { credentials_file: self.cloud.google.clone() },
            };
            return Ok(Target::Gcs(Gcs { bucket: gcs.bucket.clone(), endpoint: None, credentials, ca: None }));
        }
        if let Some(azure) = &destination.azure {
            let credentials = match &azure.account_key {
                Some(key) => AzureCredentials::Key(Secret::from(self.key(key).await?)),
                None => AzureCredentials::Identity(self.cloud.azure.clone()),
            };
            return Ok(Target::Azure(Azure {
                account: azure.account.clone(),
                container: azure.container.clone(),
                endpoint: None,
                credentials,
                ca: None,
            }));
        }
        if destination.volume.is_some() {
            return Ok(Target::Volume { folder: mount.to_owned() });
        }
        Err(invalid("it names none of s3, gcs, azure and volume"))
    }

    async fn key(&self, key: &SecretKey) -> Result<String, Error> {
        value(&key.name, &self.secret(&key.name).await?, &key.key)
    }

    async fn secret(&self, name: &str) -> Result<BTreeMap<String, ByteString>, Error> {
        let found = call("the Secret of the destination", self.secrets.get_opt(name)).await?;
        let found = found.ok_or_else(|| invalid(&format!("there is no Secret {name} in this namespace: create it")))?;
        Ok(found.data.unwrap_or_default())
    }
}

fn value(name: &str, data: &BTreeMap<String, ByteString>, key: &str) -> Result<String, Error> {
    let bytes = data.get(key).ok_or_else(|| invalid(&format!("the Secret {name} has no key {key}: add it")))?;
    let text = String::from_utf8(bytes.0.clone());
    // A trailing line break is what `kubectl create secret --from-file` leaves.
    text.map(|text| text.trim_end_matches(['\n', '\r']).to_owned())
        .map_err(|_| invalid(&format!("the key {key} of the Secret {name} is no text")))
}

fn invalid(message: &str) -> Error {
    Error::Invalid { what: "the destination of backups", message: message.to_owned() }
}
