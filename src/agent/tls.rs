//! Keys and certificates of the agents' API, from the mounted Secret, exchanged while it runs.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Error;
use super::files::{Secrets, read};

/// Both sides of mutual TLS.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Pair>>);

#[derive(Clone)]
struct Pair {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Tls {
    /// From the mounted Secret.
    pub fn load(secrets: &Secrets) -> Result<Self, Error> {
        Ok(Self(Arc::new(RwLock::new(pair(secrets)?))))
    }

    /// Takes what is mounted now; a broken Secret leaves the old one in use.
    pub fn reload(&self, secrets: &Secrets) -> Result<(), Error> {
        let pair = pair(secrets)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = pair;
        Ok(())
    }

    /// For those who connect to us.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).server.clone()
    }

    /// For those to whom we connect.
    pub fn client(&self) -> Arc<ClientConfig> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).client.clone()
    }
}

fn pair(secrets: &Secrets) -> Result<Pair, Error> {
    let certificate = secrets.file("replication", "tls.crt");
    let ca = secrets.file("replication", "ca.crt");
    let key = secrets.file("replication", "tls.key");
    let broken = |path: &Path| {
        let path = path.to_owned();
        move |message: String| Error::Tls { path, message }
    };
    let chain = certificates(&certificate)?;
    let load_key = || PrivateKeyDer::from_pem_slice(&read(&key)?).map_err(|error| broken(&key)(error.to_string()));
    let mut roots = RootCertStore::empty();
    for root in certificates(&ca)? {
        roots.add(root).map_err(|error| broken(&ca)(error.to_string()))?;
    }
    let roots = Arc::new(roots);
    let verifier =
        WebPkiClientVerifier::builder(roots.clone()).build().map_err(|error| broken(&ca)(error.to_string()))?;
    let mut server = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), load_key()?)
        .map_err(|error| broken(&certificate)(error.to_string()))?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, load_key()?)
        .map_err(|error| broken(&certificate)(error.to_string()))?;
    Ok(Pair { server: Arc::new(server), client: Arc::new(client) })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = read(path)?;
    let broken = |message: String| Error::Tls { path: path.to_owned(), message };
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<_, _>>().map_err(|error| broken(error.to_string()))?;
    if found.is_empty() { Err(broken("there is no certificate in it".into())) } else { Ok(found) }
}

/// Common name of a certificate.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}
