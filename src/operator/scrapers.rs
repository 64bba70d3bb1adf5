//! Who may read the operator's metrics, where these are secured: whom the API server knows by the token, and lets `get` the
//! address `/metrics`. Also a replica that does not lead has metrics, so that its questions do not pass the gate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::error::{Error, call};
use super::keys;
use crate::telemetry::secure::{Access, Guard};

/// An answer of the API server is believed this long: a scrape comes more often, and a right that was taken away ends then.
const BELIEVED: Duration = Duration::from_secs(60);
/// As many answers are remembered; more tokens than that are somebody's attempts.
const MOST: usize = 64;

type Answers = Arc<Mutex<HashMap<[u8; 32], (Instant, Access)>>>;

/// Asks the API server, and remembers what it said.
pub fn guard(client: Client) -> Guard {
    let answers = Answers::default();
    Arc::new(move |token| {
        let (client, answers) = (client.clone(), Arc::clone(&answers));
        async move {
            // Tokens are secrets: not even the memory of the process keeps one for longer than its request.
            let mark: [u8; 32] = Sha256::digest(token.as_bytes()).into();
            let known = answers.lock().unwrap_or_else(PoisonError::into_inner).get(&mark).copied();
            if let Some((_, access)) = known.filter(|(at, _)| at.elapsed() < BELIEVED) {
                return access;
            }
            match ask(&client, token).await {
                Ok(access) => {
                    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                    answers.retain(|_, (at, _)| at.elapsed() < BELIEVED);
                    if answers.len() < MOST {
                        answers.insert(mark, (Instant::now(), access));
                    }
                    access
                }
                Err(error) => {
                    tracing::warn!(%error, category = error.category().as_str(), "who reads the metrics is not known");
                    Access::Unavailable
                }
            }
        }
        .boxed()
    })
}

async fn ask(client: &Client, token: String) -> Result<Access, Error> {
    let review =
        TokenReview { spec: TokenReviewSpec { token, ..TokenReviewSpec::default() }, ..TokenReview::default() };
    let reviews = Api::<TokenReview>::all(client.clone());
    let params = PostParams::default();
    let answer = call("a token cannot be reviewed", reviews.create(&params, &review)).await?;
    let status = answer.status.unwrap_or_default();
    let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else { return Ok(Access::Unknown) };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some("/metrics".into()),
                verb: Some("get".into()),
            }),
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let answer = call("a right cannot be reviewed", reviews.create(&params, &review)).await?;
    let allowed = answer.status.is_some_and(|status| status.allowed && status.denied != Some(true));
    Ok(if allowed { Access::Granted } else { Access::Denied })
}

/// TLS with a certificate of its own, made now and known to nobody: it keeps the token from those who listen.
pub fn tls(namespace: &str) -> Result<Arc<ServerConfig>, Error> {
    let name = "hello-operator-metrics";
    let names = [format!("{name}.{namespace}.svc"), format!("{name}.{namespace}")];
    let pair = keys::own(name, &names, jiff::Timestamp::now())?;
    let broken = |why: String| Error::Tls { what: "certificate of the metrics".into(), why };
    let certificate =
        CertificateDer::from_pem_slice(pair.certificate.as_bytes()).map_err(|error| broken(error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|error| broken(error.to_string()))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(|error| broken(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
