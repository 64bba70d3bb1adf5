//! synchronous_standby_names.

use super::quote;

/// A name that no standby ever has: commits wait. Never empty the setting: that releases every waiting commit as a success.
pub const NOBODY: &str = "nobody-yet";

/// The setting by which a commit waits for `k` of `members`. Members that do not take part yet are simply left out;
/// with fewer than `k` of them, placeholders stand in, so that commits wait.
pub fn any(k: u32, members: &[String]) -> String {
    let mut names: Vec<String> = members.iter().map(|member| quote::identifier(member)).collect();
    for number in names.len()..usize::try_from(k).unwrap_or(usize::MAX).min(64) {
        names.push(quote::identifier(&format!("{NOBODY}-{number}")));
    }
    format!("ANY {k} ({})", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_placeholders_stand_in() {
        assert_eq!(any(1, &["a-1".into(), "b".into()]), r#"ANY 1 ("a-1", "b")"#);
        assert_eq!(any(2, &["a".into()]), r#"ANY 2 ("a", "nobody-yet-1")"#);
        assert_eq!(any(1, &[]), r#"ANY 1 ("nobody-yet-0")"#);
    }
}
