//! What stands in the Secrets for applications. A password may hold any character, so each form escapes in its own way.

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::api::names::PORT_POSTGRES;

/// Everything but what a URI allows anywhere.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// How to log in.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The role.
    pub username: String,
    /// Its password.
    pub password: String,
    /// Where the primary is reached.
    pub host: String,
    /// The database.
    pub database: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("username", &self.username).field("host", &self.host).finish_non_exhaustive()
    }
}

fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// In a pgpass file a colon or backslash is preceded by a backslash.
fn pgpass(text: &str) -> String {
    text.replace('\\', "\\\\").replace(':', "\\:")
}

impl Login {
    /// Keys and values of the Secret.
    pub fn data(&self) -> BTreeMap<String, String> {
        let Self { username, password, host, database } = self;
        let port = PORT_POSTGRES;
        let (user, pass, db) = (escape(username), escape(password), escape(database));
        [
            ("username", username.clone()),
            ("password", password.clone()),
            ("host", host.clone()),
            ("port", port.to_string()),
            ("dbname", database.clone()),
            ("uri", format!("postgresql://{user}:{pass}@{host}:{port}/{db}?sslmode=require")),
            ("jdbc-uri", format!("jdbc:postgresql://{host}:{port}/{db}?user={user}&password={pass}&sslmode=require")),
            ("pgpass", format!("{host}:{port}:{}:{}:{}\n", pgpass(database), pgpass(username), pgpass(password))),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }
}

/// What PostgreSQL cannot take as a password.
pub fn password_mistake(password: &str) -> Option<&'static str> {
    if password.is_empty() {
        return Some("its key password is empty");
    }
    // A file of pgpass has one entry a line, and PostgreSQL's own strings end at NUL.
    if password.contains(['\0', '\n', '\r']) {
        return Some(
            "its key password holds a line break or a NUL: leave these out (a trailing line break often comes from echo without -n)",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn login(password: &str) -> BTreeMap<String, String> {
        Login {
            username: "app".into(),
            password: password.into(),
            host: "db-rw.shop.svc".into(),
            database: "app".into(),
        }
        .data()
    }

    #[test]
    fn special_characters_are_escaped_in_each_form() {
        let data = login("a:b/c@d?e&f\\g é");
        assert_eq!(
            data["uri"],
            "postgresql://app:a%3Ab%2Fc%40d%3Fe%26f%5Cg%20%C3%A9@db-rw.shop.svc:5432/app?sslmode=require"
        );
        assert_eq!(data["pgpass"], "db-rw.shop.svc:5432:app:app:a\\:b/c@d?e&f\\\\g é\n");
        assert_eq!(data["password"], "a:b/c@d?e&f\\g é");
    }

    proptest! {
        #[test]
        fn any_password_is_read_back_from_the_uri(password in "[^\\x00\\r\\n]{1,40}") {
            let config: tokio_postgres::Config = login(&password)["uri"].parse().unwrap();
            prop_assert_eq!(config.get_password(), Some(password.as_bytes()));
        }
    }

    #[test]
    fn a_password_with_a_line_break_is_refused() {
        assert!(password_mistake("secret\n").is_some());
        assert!(password_mistake("").is_some());
        assert!(password_mistake("secret").is_none());
    }
}
