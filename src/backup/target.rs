//! Where a destination is and by what right we write there, and a client for it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig};

use super::Error;

/// A text that no log, error or `{:?}` shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself, for whoever signs with it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// A destination without the path in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Amazon S3, or what speaks its protocol. It has to know `If-None-Match: *` at PutObject.
    S3(S3),
    /// Google Cloud Storage.
    Gcs(Gcs),
    /// Azure Blob Storage.
    Azure(Azure),
    /// A mounted volume.
    Volume {
        /// Where it is mounted; it has to be there.
        folder: PathBuf,
    },
}

/// A bucket of S3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3 {
    /// Name of the bucket.
    pub bucket: String,
    /// Address of the service, without the bucket; None: Amazon's. Only `http://` in front of it allows a connection without TLS.
    pub endpoint: Option<String>,
    /// Region; None: us-east-1.
    pub region: Option<String>,
    /// Who we are.
    pub credentials: S3Credentials,
    /// Authorities that sign the service's certificate, PEM; None: the public ones.
    pub ca: Option<String>,
    /// The bucket as the first part of the path, not of the host name.
    pub path_style: bool,
}

/// Who we are to S3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum S3Credentials {
    /// An access key.
    Key {
        /// Its id.
        access_key_id: String,
        /// Its secret.
        secret_access_key: Secret,
        /// Of temporary credentials.
        session_token: Option<Secret>,
    },
    /// Whatever the Pod may be.
    Identity(AwsIdentity),
}

/// What EKS puts into a Pod's environment (IRSA or Pod Identity), each named as its `AWS_…` variable. Without any the instance's
/// metadata are asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AwsIdentity {
    /// `AWS_WEB_IDENTITY_TOKEN_FILE`
    pub web_identity_token_file: Option<String>,
    /// `AWS_ROLE_ARN`
    pub role_arn: Option<String>,
    /// `AWS_ROLE_SESSION_NAME`
    pub role_session_name: Option<String>,
    /// `AWS_ENDPOINT_URL_STS`
    pub sts_endpoint: Option<String>,
    /// `AWS_CONTAINER_CREDENTIALS_FULL_URI`
    pub container_credentials_full_uri: Option<String>,
    /// `AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE`
    pub container_authorization_token_file: Option<String>,
}

/// What the cloud put into the Pod's environment for the identity of its service account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloudIdentity {
    /// Amazon's.
    pub aws: AwsIdentity,
    /// Google's: `GOOGLE_APPLICATION_CREDENTIALS`.
    pub google: Option<String>,
    /// Azure's.
    pub azure: AzureIdentity,
}

/// A bucket of Google Cloud Storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gcs {
    /// Name of the bucket.
    pub bucket: String,
    /// Address of the service; None: Google's.
    pub endpoint: Option<String>,
    /// Who we are.
    pub credentials: GcsCredentials,
    /// Authorities that sign the service's certificate, PEM; None: the public ones.
    pub ca: Option<String>,
}

/// Who we are to Google.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GcsCredentials {
    /// Key of a service account, JSON.
    ServiceAccount(Secret),
    /// Whatever the Pod may be.
    Identity {
        /// `GOOGLE_APPLICATION_CREDENTIALS`; None: the metadata server is asked, as GKE's workload identity wants it.
        credentials_file: Option<String>,
    },
}

/// A container of Azure Blob Storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Azure {
    /// Storage account.
    pub account: String,
    /// Name of the container.
    pub container: String,
    /// Address of the service with the account in it; None: Azure's public cloud.
    pub endpoint: Option<String>,
    /// Who we are.
    pub credentials: AzureCredentials,
    /// Authorities that sign the service's certificate, PEM; None: the public ones.
    pub ca: Option<String>,
}

/// Who we are to Azure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AzureCredentials {
    /// A key of the account, base64.
    Key(Secret),
    /// A shared access signature.
    Sas(Secret),
    /// Whatever the Pod may be.
    Identity(AzureIdentity),
}

/// What the workload identity webhook puts into a Pod's environment, each named as its `AZURE_…` variable. Without a token file
/// the managed identity of the machine is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AzureIdentity {
    /// `AZURE_CLIENT_ID`
    pub client_id: Option<String>,
    /// `AZURE_TENANT_ID`
    pub tenant_id: Option<String>,
    /// `AZURE_FEDERATED_TOKEN_FILE`
    pub federated_token_file: Option<String>,
    /// `AZURE_AUTHORITY_HOST`
    pub authority_host: Option<String>,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Until a connection stands.
    pub connect: Duration,
    /// Without a byte of an answer. A request's body has to be sent in this time, too: 5 MiB in a minute are 90 KiB/s.
    pub silence: Duration,
    /// One call with all its retries.
    pub call: Duration,
    /// Retries of one call.
    pub retries: usize,
    /// Longest pause before a retry; the first ones are shorter.
    pub pause: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            silence: Duration::from_secs(60),
            call: Duration::from_secs(180),
            retries: 6,
            pause: Duration::from_secs(5),
        }
    }
}

impl Bounds {
    /// For our own retries: the pause before the one of this number.
    pub(super) fn pause_before(&self, retry: usize) -> Duration {
        let exponent = u32::try_from(retry.min(10)).unwrap_or(10);
        self.pause.min(Duration::from_millis(50) * 2u32.pow(exponent))
    }
}

impl Target {
    /// For people: where it is.
    pub(super) fn place(&self) -> String {
        match self {
            Self::S3(s3) => format!("s3://{}", s3.bucket),
            Self::Gcs(gcs) => format!("gs://{}", gcs.bucket),
            Self::Azure(azure) => format!("azure://{}/{}", azure.account, azure.container),
            Self::Volume { folder } => folder.display().to_string(),
        }
    }

    /// A client. Nothing is asked of the destination yet, but for a volume's folder.
    pub(super) fn client(&self, bounds: &Bounds) -> Result<Arc<dyn ObjectStore>, Error> {
        // What the library says of a bad setting may hold the setting, which may be a secret: only its kind is told.
        let refuse = |what: &'static str| {
            let place = self.place();
            move |_: object_store::Error| {
                Error::Refused(format!("{what} for {place} cannot be used: look at their form"))
            }
        };
        Ok(match self {
            Self::S3(s3) => Arc::new(s3.client(bounds)?.build().map_err(refuse("address or credentials"))?),
            Self::Gcs(gcs) => Arc::new(gcs.client(bounds)?.build().map_err(refuse("address or credentials"))?),
            Self::Azure(azure) => Arc::new(azure.client(bounds)?.build().map_err(refuse("address or credentials"))?),
            Self::Volume { folder } => {
                let missing = |source: object_store::Error| Error::NoBucket {
                    destination: folder.display().to_string(),
                    reason: super::store::innermost(&source),
                };
                Arc::new(LocalFileSystem::new_with_prefix(folder).map_err(missing)?.with_fsync(true))
            }
        })
    }
}

fn retry(bounds: &Bounds) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: bounds.pause, base: 2.0 },
        max_retries: bounds.retries,
        retry_timeout: bounds.call,
    }
}

/// With the authorities given, else with Mozilla's: images of databases often bring none.
fn options(bounds: &Bounds, endpoint: Option<&str>, ca: Option<&str>) -> Result<ClientOptions, Error> {
    let plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let mut options = ClientOptions::new()
        .with_allow_http(plain)
        .with_connect_timeout(bounds.connect)
        .with_read_timeout(bounds.silence)
        // An answer may be a part of a terabyte; silence bounds it.
        .with_timeout_disabled()
        .with_no_system_certificates(true);
    let unusable = |_| Error::Refused("the authorities (ca) of the destination are no PEM certificates".to_owned());
    let authorities = match ca {
        Some(pem) => {
            let authorities = Certificate::from_pem_bundle(pem.as_bytes()).map_err(unusable)?;
            if authorities.is_empty() {
                return Err(Error::Refused("the authorities (ca) of the destination hold no certificate".to_owned()));
            }
            authorities
        }
        None if plain => Vec::new(),
        None => webpki_root_certs::TLS_SERVER_ROOT_CERTS
            .iter()
            .map(|der| Certificate::from_der(der))
            .collect::<Result<_, _>>()
            .map_err(unusable)?,
    };
    for authority in authorities {
        options = options.with_root_certificate(authority);
    }
    Ok(options)
}

impl S3 {
    fn client(&self, bounds: &Bounds) -> Result<AmazonS3Builder, Error> {
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&self.bucket)
            .with_region(self.region.as_deref().unwrap_or("us-east-1"))
            .with_virtual_hosted_style_request(!self.path_style)
            .with_client_options(options(bounds, self.endpoint.as_deref(), self.ca.as_deref())?)
            .with_retry(retry(bounds))
            // DeleteObjects is not everywhere; DeleteObject is.
            .with_disable_bulk_delete(true);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(self.address(endpoint.trim_end_matches('/')));
        }
        match &self.credentials {
            S3Credentials::Key { access_key_id, secret_access_key, session_token } => {
                builder = builder.with_access_key_id(access_key_id).with_secret_access_key(secret_access_key.expose());
                if let Some(token) = session_token {
                    builder = builder.with_token(token.expose());
                }
            }
            S3Credentials::Identity(identity) => {
                for (key, value) in [
                    (AmazonS3ConfigKey::WebIdentityTokenFile, &identity.web_identity_token_file),
                    (AmazonS3ConfigKey::RoleArn, &identity.role_arn),
                    (AmazonS3ConfigKey::RoleSessionName, &identity.role_session_name),
                    (AmazonS3ConfigKey::StsEndpoint, &identity.sts_endpoint),
                    (AmazonS3ConfigKey::ContainerCredentialsFullUri, &identity.container_credentials_full_uri),
                    (AmazonS3ConfigKey::ContainerAuthorizationTokenFile, &identity.container_authorization_token_file),
                ] {
                    if let Some(value) = value {
                        builder = builder.with_config(key, value);
                    }
                }
            }
        }
        Ok(builder)
    }

    /// The endpoint as the library wants it: with the bucket in the host name, unless that is in the path.
    fn address(&self, endpoint: &str) -> String {
        match endpoint.split_once("://") {
            Some((scheme, host)) if !self.path_style => format!("{scheme}://{}.{host}", self.bucket),
            _ => endpoint.to_owned(),
        }
    }
}

impl Gcs {
    fn client(&self, bounds: &Bounds) -> Result<GoogleCloudStorageBuilder, Error> {
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(&self.bucket)
            .with_client_options(options(bounds, self.endpoint.as_deref(), self.ca.as_deref())?)
            .with_retry(retry(bounds));
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_base_url(endpoint.trim_end_matches('/'));
        }
        Ok(match &self.credentials {
            GcsCredentials::ServiceAccount(json) => builder.with_service_account_key(json.expose()),
            GcsCredentials::Identity { credentials_file: Some(file) } => builder.with_application_credentials(file),
            GcsCredentials::Identity { credentials_file: None } => builder,
        })
    }
}

impl Azure {
    fn client(&self, bounds: &Bounds) -> Result<MicrosoftAzureBuilder, Error> {
        let mut builder = MicrosoftAzureBuilder::new()
            .with_account(&self.account)
            .with_container_name(&self.container)
            .with_client_options(options(bounds, self.endpoint.as_deref(), self.ca.as_deref())?)
            .with_retry(retry(bounds));
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        match &self.credentials {
            AzureCredentials::Key(key) => builder = builder.with_access_key(key.expose()),
            AzureCredentials::Sas(sas) => builder = builder.with_config(AzureConfigKey::SasKey, sas.expose()),
            AzureCredentials::Identity(identity) => {
                for (key, value) in [
                    (AzureConfigKey::ClientId, &identity.client_id),
                    (AzureConfigKey::AuthorityId, &identity.tenant_id),
                    (AzureConfigKey::FederatedTokenFile, &identity.federated_token_file),
                    (AzureConfigKey::AuthorityHost, &identity.authority_host),
                ] {
                    if let Some(value) = value {
                        builder = builder.with_config(key, value);
                    }
                }
            }
        }
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &str) -> Target {
        Target::S3(S3 {
            bucket: "b".to_owned(),
            endpoint: Some("https://s3.example:9000/".to_owned()),
            region: None,
            credentials: S3Credentials::Key {
                access_key_id: "id".to_owned(),
                secret_access_key: secret.into(),
                session_token: Some("a token".into()),
            },
            ca: None,
            path_style: false,
        })
    }

    #[test]
    fn secrets_are_not_shown() {
        let gcs = Target::Gcs(Gcs {
            bucket: "b".to_owned(),
            endpoint: None,
            credentials: GcsCredentials::ServiceAccount("{\"private_key\": \"s3cr3t\"".into()),
            ca: None,
        });
        let azure = Target::Azure(Azure {
            account: "a".to_owned(),
            container: "c".to_owned(),
            endpoint: None,
            credentials: AzureCredentials::Key("s3cr3t, not base64".into()),
            ca: None,
        });
        for target in [key("s3cr3t"), gcs, azure] {
            assert!(!format!("{target:?}").contains("s3cr3t"), "{target:?}");
            if let Err(error) = target.client(&Bounds::default()) {
                assert!(matches!(error, Error::Refused(_)), "{error:?}");
                assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{error:?}");
            }
        }
    }

    #[test]
    fn a_bucket_stands_in_the_host_name_or_in_the_path() {
        let Target::S3(mut s3) = key("x") else { unreachable!() };
        assert_eq!(s3.address("https://s3.example:9000"), "https://b.s3.example:9000");
        s3.path_style = true;
        assert_eq!(s3.address("https://s3.example:9000"), "https://s3.example:9000");
    }

    #[test]
    fn every_kind_of_credentials_makes_a_client() {
        let azure = |credentials| {
            Target::Azure(Azure {
                account: "a".to_owned(),
                container: "c".to_owned(),
                endpoint: None,
                credentials,
                ca: None,
            })
        };
        let identity = AzureIdentity {
            client_id: Some("c".to_owned()),
            tenant_id: Some("t".to_owned()),
            federated_token_file: Some("/token".to_owned()),
            authority_host: Some("https://login.example/".to_owned()),
        };
        for target in [
            key("with /+=&?%\"'\\ and ünïcödé in it"),
            azure(AzureCredentials::Key("c2VjcmV0".into())),
            azure(AzureCredentials::Sas("?sv=2021-10-04&sig=C7%2BZe%3D".into())),
            azure(AzureCredentials::Identity(identity)),
            azure(AzureCredentials::Identity(AzureIdentity::default())),
            Target::Gcs(Gcs {
                bucket: "b".to_owned(),
                endpoint: None,
                credentials: GcsCredentials::Identity { credentials_file: None },
                ca: None,
            }),
        ] {
            target.client(&Bounds::default()).unwrap();
        }
    }

    #[test]
    fn a_missing_volume_and_a_bad_authority_are_said() {
        let volume = Target::Volume { folder: "/nowhere/at/all".into() };
        assert!(matches!(volume.client(&Bounds::default()), Err(Error::NoBucket { .. })));
        for pem in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let Target::S3(mut s3) = key("x") else { unreachable!() };
            s3.ca = Some(pem.to_owned());
            assert!(matches!(Target::S3(s3).client(&Bounds::default()), Err(Error::Refused(_))), "{pem}");
        }
    }
}
