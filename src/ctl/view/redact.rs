//! What is secret does not leave: in objects by the name of a field, in texts by its form, and everywhere by its value,
//! where that is known.

use serde_json::{Value, json};

/// In the place of a secret.
pub const REDACTED: &str = "[redacted]";

/// Shorter values are not looked for in texts: they are words that say nothing.
const SHORTEST: usize = 6;

/// What hides secrets.
#[derive(Debug, Clone, Default)]
pub struct Redact {
    /// Values that are known to be secret, the longest first.
    values: Vec<String>,
}

impl Redact {
    /// With values that are known to be secret. A value of several lines is hidden line by line, too: a log may break it.
    pub fn new(known: impl IntoIterator<Item = String>) -> Self {
        let mut values: Vec<String> = Vec::new();
        for value in known {
            let lines = value.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
            values.extend(lines);
            values.push(value.trim().to_owned());
        }
        values.retain(|value| value.len() >= SHORTEST && !value.starts_with("-----"));
        values.sort_by(|a, b| (b.len(), b).cmp(&(a.len(), a)));
        values.dedup();
        Self { values }
    }

    /// A text, line by line.
    pub fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut in_key = false;
        for line in text.split_inclusive('\n') {
            let begins = line.contains("-----BEGIN ") && line.contains("PRIVATE KEY");
            let ends = line.contains("-----END ") && line.contains("PRIVATE KEY");
            if begins || in_key {
                if !in_key || ends {
                    out.push_str(REDACTED);
                    out.push('\n');
                }
                in_key = !ends;
                continue;
            }
            out.push_str(&self.line(line));
        }
        out
    }

    fn line(&self, line: &str) -> String {
        let known = self.values.iter().fold(line.to_owned(), |line, value| line.replace(value.as_str(), REDACTED));
        ["password", "passwd", "secretaccesskey", "secret_access_key", "accesskeyid", "accountkey", "sastoken", "token"]
            .iter()
            .fold(credentials(&known), |line, word| after_word(&line, word))
    }

    /// An object: fields with the names of secrets, what kubectl remembers of it, statements, and every text.
    pub fn object(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => Value::Object(
                fields
                    .iter()
                    .filter(|(name, _)| *name != "managedFields" && *name != LAST_APPLIED)
                    .map(|(name, value)| (name.clone(), self.field(name, value)))
                    .collect(),
            ),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.object(item)).collect()),
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                // An object in an annotation or a ConfigMap.
                Ok(inner) if inner.is_object() || inner.is_array() => json!(self.object(&inner).to_string()),
                _ => json!(self.text(text)),
            },
            other => other.clone(),
        }
    }

    fn field(&self, name: &str, value: &Value) -> Value {
        let lower = name.to_lowercase();
        // Statements hold passwords in forms of their own.
        let statements = lower == "initsql";
        let secret = ["password", "secretaccesskey", "apikey", "api_key"].iter().any(|word| lower.ends_with(word))
            || ["token", "data"].contains(&lower.as_str()) && value.is_string();
        match value {
            Value::Array(items) if statements => json!(format!("{REDACTED}: {} statements", items.len())),
            Value::String(_) if statements || secret => json!(REDACTED),
            _ => self.object(value),
        }
    }
}

/// What kubectl apply remembers: the object once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// `scheme://user:secret@host` without the secret.
fn credentials(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        let end = after.find(|c: char| c.is_whitespace() || "/\"'<>?".contains(c)).unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        match authority.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
            Some((user, host)) => {
                for part in [user, ":", REDACTED, "@", host] {
                    out.push_str(part);
                }
            }
            None => out.push_str(authority),
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// What follows `word`, in whatever case, after `=`, `:` or a quote: `PASSWORD 'x'`, `password=x`, `"token": "x"`.
fn after_word(line: &str, word: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let mut out = String::new();
    let mut from = 0;
    while let Some(found) = lower.get(from..).and_then(|rest| rest.find(word)) {
        let after = from + found + word.len();
        // `automountServiceAccountToken` is none.
        let begins = !line.get(..from + found).is_some_and(|before| before.ends_with(char::is_alphanumeric));
        out.push_str(line.get(from..after).unwrap_or_default());
        let rest = line.get(after..).unwrap_or_default();
        let (gap, value) = if begins || word != "token" { value_of(rest) } else { (0, 0) };
        out.push_str(rest.get(..gap).unwrap_or_default());
        if value > 0 {
            out.push_str(REDACTED);
        }
        from = after + gap + value;
    }
    out.push_str(line.get(from..).unwrap_or_default());
    out
}

/// How many bytes stand before a value, and how many are the value. Without a sign that one follows: none.
fn value_of(rest: &str) -> (usize, usize) {
    // A quote may close the name of the field: `"token": `; and be escaped, in a line of JSON.
    let closed = rest.trim_start_matches(['\\', '"', '\'']);
    let spaced = closed.trim_start();
    let signed = spaced.trim_start_matches(['=', ':']);
    let value = if signed.len() < spaced.len() { signed.trim_start() } else { spaced };
    let opening = value.trim_start_matches('\\');
    let quote = opening.chars().next().filter(|first| ['"', '\''].contains(first));
    match quote {
        Some(quote) => {
            let inner = opening.get(1..).unwrap_or_default();
            let gap = rest.len() - inner.len();
            // In a quoted text a doubled quote is a quote.
            let mut end = inner.len();
            let mut skip = false;
            for (at, c) in inner.char_indices() {
                if skip {
                    skip = false;
                } else if c == quote {
                    if quote == '\'' && inner.get(at + 1..).is_some_and(|next| next.starts_with('\'')) {
                        skip = true;
                    } else {
                        end = inner.get(..at).map_or(at, |text| text.trim_end_matches('\\').len());
                        break;
                    }
                }
            }
            (gap, end)
        }
        None if signed.len() < spaced.len() => {
            let gap = rest.len() - value.len();
            let end = value.find(|c: char| c.is_whitespace() || ",;&\"'}".contains(c)).unwrap_or(value.len());
            // In JSON, the fields of a secret are hidden one by one.
            let inner = value.strip_prefix(['{', '[']).map(|inner| inner.chars().next());
            let nested =
                inner.is_some_and(|next| next.is_none_or(|next| next.is_whitespace() || "\"{}[]".contains(next)));
            if nested { (0, 0) } else { (gap, end) }
        }
        None => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_texts_are_found_by_their_form() {
        let redact = Redact::default();
        for (line, shown) in [
            (
                "to postgres://app:s3cr%40t@db-rw:5432/app?x=1 now",
                "to postgres://app:[redacted]@db-rw:5432/app?x=1 now",
            ),
            ("http://host:5432/path", "http://host:5432/path"),
            ("ALTER ROLE app PASSWORD 'it''s me' VALID", "ALTER ROLE app PASSWORD '[redacted]' VALID"),
            ("host=a password=hunter2 dbname=x", "host=a password=[redacted] dbname=x"),
            (r#"{"secretAccessKey": "abc", "a": 1}"#, r#"{"secretAccessKey": "[redacted]", "a": 1}"#),
            (
                r#"{"message":"create role x password \"abc\" login"}"#,
                r#"{"message":"create role x password \"[redacted]\" login"}"#,
            ),
            ("password authentication failed for user \"app\"", "password authentication failed for user \"app\""),
            ("Bearer token: abc.def", "Bearer token: [redacted]"),
            ("PASSWORD", "PASSWORD"),
            (r#""automountServiceAccountToken": true"#, r#""automountServiceAccountToken": true"#),
            (r#""password": {"name": "x"}"#, r#""password": {"name": "x"}"#),
            ("password={curly", "password=[redacted]"),
            ("password=[redacted] x", "password=[redacted] x"),
        ] {
            assert_eq!(redact.text(line), shown);
        }
    }

    #[test]
    fn keys_go_as_a_whole() {
        let text = "before\n-----BEGIN PRIVATE KEY-----\nMIIE\nabc\n-----END PRIVATE KEY-----\nafter\n";
        assert_eq!(Redact::default().text(text), "before\n[redacted]\n[redacted]\nafter\n");
    }

    #[test]
    fn values_that_are_known_go_wherever_they_stand() {
        let redact = Redact::new(["hunter2hunter2".to_owned(), "app".to_owned(), "line one\nline two".to_owned()]);
        assert_eq!(redact.text("x hunter2hunter2y app line two"), "x [redacted]y app [redacted]");
    }

    #[test]
    fn objects_lose_statements_and_copies_and_keep_their_form() {
        let redact = Redact::new(["topsecret".to_owned()]);
        let object = json!({
            "metadata": {"name": "db", "managedFields": [{}], "annotations": {LAST_APPLIED: "{}", "note": "topsecret"}},
            "spec": {"postgresql": {"initSQL": ["create role x password 'abc'"], "parameters": {"ext.api_key": "k", "work_mem": "4MB"}},
                "backup": {"destination": {"s3": {"credentials": {"secret": "backup-keys"}}}}},
            "data": {"cluster.json": r#"{"initSql":["x"],"keep":1}"#},
        });
        assert_eq!(
            redact.object(&object),
            json!({
                "metadata": {"name": "db", "annotations": {"note": REDACTED}},
                "spec": {"postgresql": {"initSQL": "[redacted]: 1 statements", "parameters": {"ext.api_key": REDACTED, "work_mem": "4MB"}},
                    "backup": {"destination": {"s3": {"credentials": {"secret": "backup-keys"}}}}},
                "data": {"cluster.json": r#"{"initSql":"[redacted]: 1 statements","keep":1}"#},
            })
        );
    }
}
