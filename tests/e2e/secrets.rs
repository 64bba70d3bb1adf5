//! Passwords and certificates: the user's own ones, and new ones, without a restart.

use hello_operator::api::names::Names;
use hello_operator::api::spec::HelloOperator;
use kube::api::{Patch, PatchParams};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::harness::{Case, ClientPod, Result, SOON, Suite, case};

/// Everything that a URI, a shell, SQL or a pgpass file could trip over.
const ODD: &str = r#"p:a/s@s?w&o=r#d %41%'"\$;`é🐘"#;

#[tokio::test]
async fn passwords_of_any_characters_and_new_ones_without_a_restart() -> Result {
    case("passwords", passwords).await
}

async fn passwords(_: &'static Suite, case: Case) -> Result {
    own_password(&case, ODD).await?;
    let spec = json!({"instances": 1, "secrets": {"app": "mine"}});
    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", spec));
    running?;
    let client = client?;
    let names = Names::new("db");
    let started = case.sql("db-1", "select pg_postmaster_start_time()").await?;

    assert_eq!(case.secret(&names.secret_app(), "password").await?, ODD);
    client.psql_gives(&case.uri("db").await?, "select current_user", "app").await?;
    let pgpass = client.file("pgpass", &case.secret(&names.secret_app(), "pgpass").await?).await?;
    let host = case.secret(&names.secret_app(), "host").await?;
    let by_file = format!("host={host} user=app dbname=app sslmode=require passfile={pgpass}");
    client.psql_gives(&by_file, "select current_user", "app").await?;

    // The user's Secret changes.
    own_password(&case, "another 'one'").await?;
    client.psql_gives(&by_literal(&host, "app", "app", "another 'one'"), "select 1", "1").await?;
    refused(&client, &by_literal(&host, "app", "app", ODD)).await?;

    // The operator's own: new ones when asked for.
    let superuser = names.secret_superuser();
    let before = case.secret(&superuser, "uri").await?;
    client.psql_gives(&before, "select current_user", "postgres").await?;
    annotate(&case, "terry.com/rotate-passwords", "first").await?;
    eventually(SOON, "a new password of the superuser", || async {
        match case.secret(&superuser, "uri").await {
            Ok(uri) if uri != before => Ok(()),
            Ok(_) => Err("the old one".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    client.psql_gives(&case.secret(&superuser, "uri").await?, "select current_user", "postgres").await?;
    refused(&client, &before).await?;
    client.psql_gives(&by_literal(&host, "app", "app", "another 'one'"), "select 1", "1").await?;
    assert_eq!(case.sql("db-1", "select pg_postmaster_start_time()").await?, started, "no restart");
    let stored = case.sql("db-1", "select count(*) from pg_authid where rolpassword like 'SCRAM-SHA-256$%'").await?;
    assert_eq!(stored, "2", "both are SCRAM");
    Ok(())
}

#[tokio::test]
async fn certificate_of_the_users_own_and_its_renewal_without_a_restart() -> Result {
    case("certificate", certificate).await
}

async fn certificate(_: &'static Suite, case: Case) -> Result {
    let host = format!("db-rw.{}.svc", case.namespace());
    let first = own_certificate(&case, &host).await?;
    let spec = json!({"instances": 2, "certificates": {"server": "mine"}});
    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", spec));
    running?;
    let client = client?;
    let primary = case.primary("db").await?;
    let started = case.sql(&primary, "select pg_postmaster_start_time()").await?;
    let uri = case.uri("db").await?;
    let verified = |path: &str| uri.replace("sslmode=require", &format!("sslmode=verify-full&sslrootcert={path}"));

    let path = client.file("first.crt", &first).await?;
    client.psql_gives(&verified(&path), "select ssl from pg_stat_ssl where pid = pg_backend_pid()", "t").await?;
    let streaming = "select count(*) from pg_stat_replication where state = 'streaming'";
    assert_eq!(case.sql(&primary, streaming).await?, "1");

    let second = own_certificate(&case, &host).await?;
    let path = client.file("second.crt", &second).await?;
    client.psql_gives(&verified(&path), "select 1", "1").await?;
    assert!(client.psql(&verified("/tmp/first.crt"), "select 1").await.is_err(), "the old one is still served");
    case.sql(&primary, "select pg_terminate_backend(pid) from pg_stat_replication").await?;
    case.sql_gives(&primary, streaming, "1").await?;
    assert_eq!(case.sql(&primary, "select pg_postmaster_start_time()").await?, started, "no restart");

    // A user's Secret that is missing is named.
    case.hello("lost", json!({"instances": 1, "certificates": {"server": "nowhere"}})).await?;
    case.says("lost", "Ready", false, "nowhere").await?;
    Ok(())
}

/// Makes or changes the Secret `mine` with a password.
async fn own_password(case: &Case, password: &str) -> Result {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"},
        "stringData": {"username": "app", "password": password}});
    case.apply(&secret).await?.ok().map(drop)
}

/// Makes or changes the Secret `mine` with a certificate of a new authority, and returns the authority's.
async fn own_certificate(case: &Case, host: &str) -> Result<String> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name = named("an authority of the user's own");
    let key = KeyPair::generate()?;
    let root = authority.self_signed(&key)?.pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(vec![host.to_owned()])?;
    // Subject and issuer must differ: the same name would make it a certificate of its own.
    leaf.distinguished_name = named(host);
    let leaf = leaf.signed_by(&key, &issuer)?.pem();
    let secret: Value = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": leaf, "tls.key": key.serialize_pem(), "ca.crt": root}});
    case.apply(&secret).await?.ok()?;
    Ok(root)
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// A connection in libpq's own form, where a quote and a backslash are escaped.
fn by_literal(host: &str, user: &str, database: &str, password: &str) -> String {
    let password = password.replace('\\', "\\\\").replace('\'', "\\'");
    format!("host={host} user={user} dbname={database} sslmode=require password='{password}'")
}

/// A password that is no longer accepted, and nothing else, fails.
async fn refused(client: &ClientPod, connection: &str) -> Result {
    let error =
        client.psql(connection, "select 1").await.err().ok_or("the old password is still accepted")?.to_string();
    if error.contains("password authentication failed") { Ok(()) } else { Err(error.into()) }
}

async fn annotate(case: &Case, annotation: &str, value: &str) -> Result {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation: value}}}));
    case.api::<HelloOperator>().patch("db", &PatchParams::default(), &patch).await?;
    Ok(())
}
