//! Keys and certificates. ECDSA P-256: RSA would take longer to make than the rest of a cluster.

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};

use super::error::Error;
use crate::core::world::CertificateFacts;

/// Days that an authority is valid.
const AUTHORITY_DAYS: i64 = 3650;
/// Days that a certificate is valid.
const CERTIFICATE_DAYS: i64 = 90;
/// Clocks differ.
const BACKDATE_SECONDS: i64 = 300;

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

fn tls(what: &str) -> impl Fn(rcgen::Error) -> Error + '_ {
    move |error| Error::Tls { what: what.to_owned(), why: error.to_string() }
}

fn valid(params: &mut CertificateParams, now: Timestamp, days: i64) {
    let from = now.as_second() - BACKDATE_SECONDS;
    params.not_before = date(from);
    params.not_after = date(now.as_second() + days * 86_400);
}

fn date(second: i64) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(second).unwrap_or_else(|_| date_time_ymd(2000, 1, 1))
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// An authority; with the key of the one before, so that what that signed stays valid.
pub fn authority(name: &str, key: Option<&str>, now: Timestamp) -> Result<Pair, Error> {
    let what = "certificate authority";
    let key = match key {
        Some(pem) => KeyPair::from_pem(pem).map_err(tls(what))?,
        None => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(tls(what))?,
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, now, AUTHORITY_DAYS);
    let certificate = params.self_signed(&key).map_err(tls(what))?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// A certificate signed by the authority.
pub fn certificate(
    authority: &Pair,
    name: &str,
    names: &[String],
    client: bool,
    now: Timestamp,
) -> Result<Pair, Error> {
    let what = format!("certificate of {name}");
    let what = what.as_str();
    let issuer_key = KeyPair::from_pem(&authority.key).map_err(tls("key of the certificate authority"))?;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, issuer_key).map_err(tls("certificate authority"))?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(tls(what))?;
    let mut params = CertificateParams::new(names.to_vec()).map_err(tls(what))?;
    params.distinguished_name = named(name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    if client {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    valid(&mut params, now, CERTIFICATE_DAYS);
    let certificate = params.signed_by(&key, &issuer).map_err(tls(what))?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// A certificate that nobody but itself vouches for.
pub fn own(name: &str, names: &[String], now: Timestamp) -> Result<Pair, Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(tls(name))?;
    let mut params = CertificateParams::new(names.to_vec()).map_err(tls(name))?;
    params.distinguished_name = named(name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    valid(&mut params, now, AUTHORITY_DAYS);
    let certificate = params.self_signed(&key).map_err(tls(name))?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// What a certificate says; None when it is none.
pub fn read(pem: &[u8]) -> Option<CertificateFacts> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let validity = certificate.validity();
    let mut names: Vec<String> = certificate
        .subject_alternative_name()
        .ok()
        .flatten()
        .map(|extension| {
            extension
                .value
                .general_names
                .iter()
                .filter_map(|name| match name {
                    x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
                    _ => None,
                })
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    Some(CertificateFacts {
        from: Timestamp::from_second(validity.not_before.timestamp()).ok()?,
        until: Timestamp::from_second(validity.not_after.timestamp()).ok()?,
        names,
        signed_by_ca: false,
    })
}

/// Whether a text holds a key that can be used.
pub fn is_key(pem: &str) -> bool {
    KeyPair::from_pem(pem).is_ok()
}
