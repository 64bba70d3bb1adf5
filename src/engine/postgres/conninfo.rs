//! Connection strings by which a replica reaches its primary.

use std::net::IpAddr;

use super::quote;
use crate::api::names::REPLICATION_USER;

/// The database whose functions a rewind uses; the role of the replicas may enter no other.
pub const SQL_DATABASE: &str = "postgres";

/// Where a replica finds its primary, and how it shows who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Name of the primary's instance: what its certificate must say.
    pub instance: String,
    /// Its address, as the Lease says; no DNS is asked.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether the server's certificate is the user's own, which need not name our instances.
    pub foreign_certificate: bool,
    /// Certificate authority of the server's certificate.
    pub ca: String,
    /// Client certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl Upstream {
    /// The connection string of a session that asks by SQL.
    pub fn sql_conninfo(&self, application_name: &str) -> String {
        format!("{} dbname={}", self.conninfo(application_name), quote::conninfo(SQL_DATABASE))
    }

    /// The connection string; `application_name` is the member id of the replica that connects.
    pub fn conninfo(&self, application_name: &str) -> String {
        let mode = if self.foreign_certificate { "verify-ca" } else { "verify-full" };
        let parts: [(&str, &str); 14] = [
            ("host", &self.instance),
            ("hostaddr", &self.address.to_string()),
            ("port", &self.port.to_string()),
            ("user", REPLICATION_USER),
            ("application_name", application_name),
            ("sslmode", mode),
            ("sslrootcert", &self.ca),
            ("sslcert", &self.certificate),
            ("sslkey", &self.key),
            ("gssencmode", "disable"),
            ("connect_timeout", "5"),
            ("keepalives_idle", "5"),
            ("keepalives_interval", "2"),
            ("tcp_user_timeout", "10000"),
        ];
        parts.iter().map(|(key, value)| format!("{key}={}", quote::conninfo(value))).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_dials_the_address_and_verifies_the_name() {
        let mut upstream = Upstream {
            instance: "db-1".into(),
            address: "fd00::1".parse().unwrap(),
            port: 5432,
            foreign_certificate: false,
            ca: "/etc/ca.crt".into(),
            certificate: "/etc/tls.crt".into(),
            key: "/etc/o'key".into(),
        };
        let text = upstream.conninfo("m1");
        assert!(text.starts_with("host='db-1' hostaddr='fd00::1' port='5432' user='streaming_replica'"), "{text}");
        assert!(text.contains("sslmode='verify-full'") && text.contains("sslkey='/etc/o\\'key'"), "{text}");
        assert!(upstream.sql_conninfo("m1").ends_with(" dbname='postgres'"));
        upstream.foreign_certificate = true;
        assert!(upstream.conninfo("m1").contains("sslmode='verify-ca'"));
    }
}
