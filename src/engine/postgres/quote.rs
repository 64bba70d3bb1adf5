//! The four ways in which PostgreSQL wants a text quoted.

/// A literal in SQL, correct whatever standard_conforming_strings says.
pub fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') { format!("E'{}'", doubled.replace('\\', "\\\\")) } else { format!("'{doubled}'") }
}

/// An identifier in SQL, and a standby's name in synchronous_standby_names.
pub fn identifier(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A value in postgresql.conf.
pub fn setting(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('\'');
    for char in text.chars() {
        match char {
            '\'' => out.push_str("''"),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            other => out.push(other),
        }
    }
    out.push('\'');
    out
}

/// A value in a connection string of libpq.
pub fn conninfo(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_escapes_what_would_end_the_text() {
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'b"), "E'a\\\\''b'");
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
        assert_eq!(setting("a'b\\c\nd"), "'a''b\\\\c\\nd'");
        assert_eq!(conninfo("a'b\\c"), "'a\\'b\\\\c'");
    }
}
