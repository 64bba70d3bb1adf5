//! synchronous_standby_names.

use super::quote;

/// The setting by which a commit waits for `k` of `members`; empty where it waits for nobody. Who wants commits to wait
/// although nobody has joined yet names a placeholder: emptying the setting releases every waiting commit as a success.
pub fn any(k: u32, members: &[String]) -> String {
    if k == 0 {
        return String::new();
    }
    let names: Vec<String> = members.iter().map(|member| quote::identifier(member)).collect();
    format!("ANY {k} ({})", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert_eq!(any(1, &["a-1".into(), "b".into()]), r#"ANY 1 ("a-1", "b")"#);
        assert_eq!(any(0, &[]), "");
    }
}
