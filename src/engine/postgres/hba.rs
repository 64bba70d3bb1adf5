//! pg_hba.conf: who may connect, and how.

use super::conninfo::SQL_DATABASE;
use crate::api::names::{REPLICATION_USER, SUPERUSER};

/// The whole file. The user's lines stand between ours and the last one, so that they can allow and refuse clients, but
/// cannot lock out the agent or a replica. The socket exists in the Pod only.
pub fn render(user: &[String]) -> String {
    let mut out = format!(
        "# Written by the agent of Hello Operator: changes are lost. Use spec.postgresql.hba.\n\
         local all {SUPERUSER} peer\n\
         local replication {SUPERUSER} peer\n\
         local all all reject\n\
         hostssl replication {REPLICATION_USER} all cert\n\
         hostssl {SQL_DATABASE} {REPLICATION_USER} all cert\n\
         host all {REPLICATION_USER} all reject\n"
    );
    for line in user {
        // The API server refuses line breaks; a file that could be injected into would be worth a second look.
        out.push_str(&line.replace(['\n', '\r'], " "));
        out.push('\n');
    }
    out.push_str("hostssl all all all scram-sha-256\n");
    out
}

/// The file of a data directory that is being made: only the socket, only the agent.
pub fn private() -> String {
    format!("local all {SUPERUSER} peer\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_lines_stand_between_ours_and_the_last() {
        let file = render(&["host all all 10.0.0.0/8 trust\nlocal all all trust".into()]);
        let lines: Vec<_> = file.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "local all postgres peer",
                "local replication postgres peer",
                "local all all reject",
                "hostssl replication streaming_replica all cert",
                "hostssl postgres streaming_replica all cert",
                "host all streaming_replica all reject",
                "host all all 10.0.0.0/8 trust local all all trust",
                "hostssl all all all scram-sha-256",
            ]
        );
    }
}
