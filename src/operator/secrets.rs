//! Secrets: their content is looked at, made and written here, and nowhere kept.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use super::error::{Error, call};
use super::facts::{self, annotation};
use super::keys::{self, Pair};
use super::mirror::ClusterKey;
use super::random;
use crate::api::names::{ANNOTATION_HASH, ANNOTATION_ROTATE_PASSWORDS, FIELD_MANAGER, Names};
use crate::core::credentials::{Login, password_mistake};
use crate::core::plan::{SecretContent, SecretInputs};
use crate::core::world::{CertificateFacts, ChildMeta, Known, Owner, SecretFacts, SecretKind, UserSecret};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";

type Data = BTreeMap<String, ByteString>;

fn text<'a>(data: &'a Data, key: &str) -> Option<&'a str> {
    data.get(key).and_then(|bytes| std::str::from_utf8(&bytes.0).ok()).filter(|text| !text.is_empty())
}

/// What a Secret's content says.
struct Learnt {
    meta: ChildMeta,
    wrong: Option<String>,
    rotated_for: Option<String>,
    certificate: Option<CertificateFacts>,
    /// Hash of the authority's certificate: of the one in it, or of itself.
    authority: Option<String>,
}

/// Reads and makes Secrets.
pub struct Secrets {
    client: Client,
}

impl Secrets {
    /// With a client whose writes pass the gate.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    fn api(&self, cluster: &ClusterKey) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &cluster.namespace)
    }

    async fn get(&self, cluster: &ClusterKey, name: &str) -> Result<Option<Secret>, Error> {
        call(format!("Secret {name} cannot be read"), self.api(cluster).get_opt(name)).await
    }

    /// What is known of all Secrets of a cluster.
    pub async fn observe(&self, cluster: &ClusterKey) -> BTreeMap<SecretKind, Known<SecretFacts>> {
        let looks = SecretKind::ALL.into_iter().map(|kind| async move {
            match self.learn(cluster, kind).await {
                Ok(learnt) => (kind, learnt.into()),
                Err(error) => (kind, Known::Unknown(error.to_string())),
            }
        });
        let all: BTreeMap<_, _> = futures::future::join_all(looks).await.into_iter().collect();
        let authority = match all.get(&SecretKind::Ca) {
            Some(Known::Present(Learnt { authority, .. })) => authority.clone(),
            _ => None,
        };
        all.into_iter()
            .map(|(kind, known)| {
                let known = match known {
                    Known::Present(learnt) => {
                        let signed = kind == SecretKind::Ca || (authority.is_some() && learnt.authority == authority);
                        let certificate =
                            learnt.certificate.map(|facts| CertificateFacts { signed_by_ca: signed, ..facts });
                        Known::Present(SecretFacts {
                            meta: learnt.meta,
                            wrong: learnt.wrong,
                            rotated_for: learnt.rotated_for,
                            certificate,
                        })
                    }
                    Known::Absent => Known::Absent,
                    Known::Unknown(why) => Known::Unknown(why),
                };
                (kind, known)
            })
            .collect()
    }

    async fn learn(&self, cluster: &ClusterKey, kind: SecretKind) -> Result<Option<Learnt>, Error> {
        let name = kind.name(&Names::new(&*cluster.name));
        let Some(secret) = self.get(cluster, &name).await? else { return Ok(None) };
        let data = secret.data.clone().unwrap_or_default();
        Ok(Some(Learnt {
            meta: facts::child(&secret.metadata),
            wrong: wrong(kind, &data),
            rotated_for: annotation(&secret.metadata, ANNOTATION_ROTATE_PASSWORDS).map(Into::into),
            certificate: text(&data, CERTIFICATE).and_then(|pem| keys::read(pem.as_bytes())),
            authority: text(&data, AUTHORITY).map(|pem| crate::core::build::hash(&json!(pem.trim()))),
        }))
    }

    /// What is known of a Secret of the user's.
    pub async fn user(&self, cluster: &ClusterKey, kind: SecretKind, name: &str) -> Known<UserSecret> {
        match self.get(cluster, name).await {
            Err(error) => Known::Unknown(error.to_string()),
            Ok(None) => Known::Absent,
            Ok(Some(secret)) => {
                let data = secret.data.unwrap_or_default();
                let meta = secret.metadata;
                Known::Present(UserSecret {
                    version: format!("{}/{}", meta.uid.unwrap_or_default(), meta.resource_version.unwrap_or_default()),
                    wrong: user_mistake(kind, &data),
                })
            }
        }
    }

    /// The cluster's authority, with its version.
    pub async fn authority(&self, cluster: &ClusterKey) -> Result<Pair, Error> {
        let name = SecretKind::Ca.name(&Names::new(&*cluster.name));
        let secret = self.get(cluster, &name).await?;
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        pair(&data).ok_or_else(|| Error::Tls { what: format!("Secret {name}"), why: "it holds no authority".into() })
    }

    /// Makes a Secret, or makes it anew.
    pub async fn make(
        &self,
        cluster: &ClusterKey,
        uid: &str,
        kind: SecretKind,
        inputs: &SecretInputs,
        fresh_password: bool,
    ) -> Result<(), Error> {
        let name = kind.name(&Names::new(&*cluster.name));
        let before = self.get(cluster, &name).await?;
        if let Some(before) = &before {
            may_write(&before.metadata, &name, uid)?;
        }
        let old = before.as_ref().and_then(|secret| secret.data.clone()).unwrap_or_default();
        let source = match &inputs.source {
            None => None,
            Some(source) => {
                let secret = self.get(cluster, source).await?;
                Some(secret.and_then(|secret| secret.data).unwrap_or_default())
            }
        };
        let now = Timestamp::now();
        let (data, type_) = match &inputs.content {
            SecretContent::Authority { name } => {
                let key = text(&old, KEY).filter(|key| keys::is_key(key));
                let made = keys::authority(name, key, now)?;
                let authority = made.certificate.clone();
                (certificate_data(made, &authority), "kubernetes.io/tls")
            }
            SecretContent::Login { username, host, database } => {
                let kept = text(&old, "password").filter(|old| !fresh_password && password_mistake(old).is_none());
                let password = match &source {
                    Some(source) => text(source, "password").map(ToOwned::to_owned).ok_or_else(|| {
                        Error::Internal(format!("the Secret that {name} stands for lost its key password"))
                    })?,
                    None => kept.map_or_else(random::password, ToOwned::to_owned),
                };
                let login =
                    Login { username: username.clone(), password, host: host.clone(), database: database.clone() };
                (login.data().into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect(), "Opaque")
            }
            SecretContent::Certificate { name, names, client } => {
                let data = if let Some(source) = &source {
                    [CERTIFICATE, KEY, AUTHORITY]
                        .into_iter()
                        .filter_map(|key| Some((key.to_owned(), source.get(key)?.clone())))
                        .collect()
                } else {
                    let authority = self.authority(cluster).await?;
                    let made = keys::certificate(&authority, name, names, *client, now)?;
                    certificate_data(made, &authority.certificate)
                };
                (data, "kubernetes.io/tls")
            }
        };
        self.write(cluster, &name, before, inputs, data, type_, fresh_password).await
    }

    #[expect(clippy::too_many_arguments, reason = "private, called once")]
    async fn write(
        &self,
        cluster: &ClusterKey,
        name: &str,
        before: Option<Secret>,
        inputs: &SecretInputs,
        data: Data,
        type_: &str,
        fresh_password: bool,
    ) -> Result<(), Error> {
        let mut secret: Secret = serde_json::from_value(json!({"metadata": inputs.metadata, "type": type_}))
            .map_err(|error| Error::Internal(error.to_string()))?;
        secret.data = Some(data);
        let annotations = secret.metadata.annotations.get_or_insert_default();
        annotations.insert(ANNOTATION_HASH.into(), inputs.hash.clone());
        let rotated = match &before {
            Some(before) if !fresh_password => {
                annotation(&before.metadata, ANNOTATION_ROTATE_PASSWORDS).map(Into::into)
            }
            _ => inputs.rotated_for.clone(),
        };
        if let Some(rotated) = rotated {
            annotations.insert(ANNOTATION_ROTATE_PASSWORDS.into(), rotated);
        }
        let api = self.api(cluster);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        match before {
            None => {
                call(format!("Secret {name} cannot be created"), api.create(&params, &secret)).await?;
            }
            Some(before) => {
                // The type cannot be changed, and the version makes the replace conditional.
                secret.type_ = before.type_;
                secret.metadata.uid = before.metadata.uid;
                secret.metadata.resource_version = before.metadata.resource_version;
                secret.metadata.owner_references = before.metadata.owner_references;
                call(format!("Secret {name} cannot be replaced"), api.replace(name, &params, &secret)).await?;
            }
        }
        Ok(())
    }
}

/// Whether a child that is there is this object's to write.
pub fn may_write(
    meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    what: &str,
    uid: &str,
) -> Result<(), Error> {
    match facts::child(meta).owner {
        Owner::Adoptable => Ok(()),
        Owner::Object(owner) if owner == uid => Ok(()),
        Owner::Object(_) => Err(Error::Leftover(what.to_owned())),
        Owner::Foreign => Err(Error::NameTaken(what.to_owned())),
    }
}

fn certificate_data(pair: Pair, authority: &str) -> Data {
    [(CERTIFICATE, pair.certificate), (KEY, pair.key), (AUTHORITY, authority.to_owned())]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
        .collect()
}

fn pair(data: &Data) -> Option<Pair> {
    Some(Pair { certificate: text(data, CERTIFICATE)?.to_owned(), key: text(data, KEY)?.to_owned() })
}

/// What is wrong with the content of one of our own.
fn wrong(kind: SecretKind, data: &Data) -> Option<String> {
    match kind {
        SecretKind::App | SecretKind::Superuser => {
            let field = |key: &str| text(data, key).map(ToOwned::to_owned);
            let login = (|| {
                Some(Login {
                    username: field("username")?,
                    password: field("password")?,
                    host: field("host")?,
                    database: field("dbname")?,
                })
            })();
            let Some(login) = login else { return Some("a key of it is missing".into()) };
            let consistent = login.data().iter().all(|(key, value)| text(data, key) == Some(value.as_str()));
            (!consistent).then(|| "its keys do not fit each other".into())
        }
        SecretKind::Ca | SecretKind::Server | SecretKind::Replication => {
            let Some(pair) = pair(data) else { return Some("a key of it is missing".into()) };
            let sound = keys::read(pair.certificate.as_bytes()).is_some() && data.contains_key(AUTHORITY);
            (!sound).then(|| "its certificate cannot be read".into())
        }
    }
}

/// What is wrong with the content of one of the user's, as the end of a sentence.
fn user_mistake(kind: SecretKind, data: &Data) -> Option<String> {
    if kind == SecretKind::Server {
        let missing: Vec<&str> =
            [CERTIFICATE, KEY, AUTHORITY].into_iter().filter(|key| text(data, key).is_none()).collect();
        if !missing.is_empty() {
            return Some(format!("lacks {}: it must hold tls.crt, tls.key and ca.crt", missing.join(" and ")));
        }
        let readable = text(data, CERTIFICATE).and_then(|pem| keys::read(pem.as_bytes())).is_some();
        return (!readable).then(|| "holds no certificate in its key tls.crt: it must be PEM".into());
    }
    match text(data, "password") {
        None => Some("lacks the key password".into()),
        Some(password) => password_mistake(password).map(|mistake| format!("cannot be used: {mistake}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pairs: &[(&str, &str)]) -> Data {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec()))).collect()
    }

    #[test]
    fn a_password_changed_by_hand_no_longer_fits_the_uri() {
        let login = Login { username: "app".into(), password: "a".into(), host: "h".into(), database: "app".into() };
        let mut content: Data = login.data().into_iter().map(|(k, v)| (k, ByteString(v.into_bytes()))).collect();
        assert_eq!(wrong(SecretKind::App, &content), None);
        content.insert("password".into(), ByteString(b"other".to_vec()));
        assert!(wrong(SecretKind::App, &content).is_some());
    }

    #[test]
    fn a_certificate_is_made_read_and_told_from_another_authoritys() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let authority = keys::authority("db of shop", None, now).unwrap();
        let names = vec!["db-1".to_owned(), "db-2".to_owned()];
        let made = keys::certificate(&authority, "streaming_replica", &names, true, now).unwrap();
        let facts = keys::read(made.certificate.as_bytes()).unwrap();
        assert_eq!(facts.names, names);
        assert!(facts.renew_at() > now && facts.renew_at() < facts.until);
        let again = keys::authority("db of shop", Some(&authority.key), now).unwrap();
        assert_eq!(again.key, authority.key);
    }

    #[test]
    fn a_users_secret_is_told_what_it_lacks() {
        assert!(
            user_mistake(SecretKind::Server, &data(&[("tls.crt", "x"), ("tls.key", "y")])).unwrap().contains("ca.crt")
        );
        assert_eq!(user_mistake(SecretKind::App, &data(&[])).as_deref(), Some("lacks the key password"));
        assert_eq!(user_mistake(SecretKind::App, &data(&[("password", "p:/@")])), None);
    }
}
