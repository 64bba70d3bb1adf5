//! Metrics for those whom the API server lets get them, with `--metrics-listen`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::definition::installed;
use crate::harness::{Plane, eventually};
use crate::processes::Operator;
use crate::together;

const PATIENCE: Duration = Duration::from_mins(1);

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![together(plane, "scrapes: metrics are for whom the API server lets get them", guarded)]
}

async fn guarded(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let namespace = plane.namespace().await;
    let (mut known, mut reader) = (String::new(), String::new());
    for (name, token) in [("somebody", &mut known), ("prometheus", &mut reader)] {
        *token = account(&client, &namespace, name).await;
    }
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "scrapes"}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &role).await.unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "scrapes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scrapes"},
        "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": namespace}],
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();

    let operator = Operator::start(&plane, "scraped", &namespace, &["--metrics-listen", "127.0.0.1:0"]);
    let address = |mark: &str| {
        let log = operator.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut lines = lines.filter(|line| line["message"].as_str().is_some_and(|message| message.contains(mark)));
        lines.next().and_then(|line| line["address"].as_str().map(str::to_owned))
    };
    let secure = eventually("the address of the metrics", PATIENCE, async || address("over TLS")).await;
    let plain = eventually("the address of the probes", PATIENCE, async || address("the operator starts")).await;

    assert_eq!(scrape(&secure, None).await.0, 401);
    assert_eq!(scrape(&secure, Some("nobody's")).await.0, 401);
    assert_eq!(scrape(&secure, Some(&known)).await.0, 403);
    // The authorizer learns of a binding by a watch, and what it said of a token before is remembered for a minute.
    eventually("the right to be known", PATIENCE, async || {
        let token = account(&client, &namespace, "prometheus").await;
        (scrape(&secure, Some(&token)).await.0 == 200).then_some(())
    })
    .await;
    for _ in 0..2 {
        let (status, text) = scrape(&secure, Some(&reader)).await;
        assert_eq!(status, 200);
        assert!(text.contains("hello_operator_build_info"), "{text}");
    }
    let mut stream = TcpStream::connect(&plain).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "nothing is left in the open: {answer}");
    assert!(!operator.log().contains(&reader) && !operator.log().contains(&known), "no token in a log");
}

/// A token of that account, which is made if it is not there.
async fn account(client: &Client, namespace: &str, name: &str) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    if accounts.get_opt(name).await.unwrap().is_none() {
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
    }
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
    let answer = accounts.create_token_request(name, &PostParams::default(), &request).await.unwrap();
    answer.status.unwrap().token.unwrap()
}

/// Status and body.
async fn scrape(address: &str, token: Option<&str>) -> (u16, String) {
    let config =
        ClientConfig::builder().dangerous().with_custom_certificate_verifier(Arc::new(Anybody)).with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let header = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    let request = format!("GET /metrics HTTP/1.1\r\nhost: test\r\n{header}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // It may end without a farewell.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

/// Like a Prometheus with insecureSkipVerify.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519, SignatureScheme::RSA_PSS_SHA256]
    }
}
