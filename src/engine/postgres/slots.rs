//! Names of replication slots.

/// Prefix of every slot that belongs to the operator.
pub const PREFIX: &str = "hello_";

/// The slot of a member: its id with the letters that a slot may have.
pub fn of(member: &str) -> String {
    let id: String = member
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '_' })
        .take(63 - PREFIX.len())
        .collect();
    format!("{PREFIX}{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_only_letters_that_postgresql_takes() {
        assert_eq!(of("db-1-3FA9"), "hello_db_1_3fa9");
        assert_eq!(of(&"x".repeat(99)).len(), 63);
    }
}
