//! Lines of several logs, merged by time.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;

use super::Paint;

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When the kubelet got it.
    pub at: Timestamp,
    /// What was written.
    pub text: String,
}

impl Line {
    /// From a line that begins with its time, as the kubelet gives it when asked.
    pub fn parse(line: &str) -> Option<Self> {
        let (at, text) = line.split_once(' ')?;
        Some(Self { at: at.parse().ok()?, text: text.trim_end().to_owned() })
    }
}

/// Merges logs, each of which is in order of time.
#[derive(Debug, Default)]
pub struct Merge {
    logs: BTreeMap<String, Log>,
}

#[derive(Debug, Default)]
struct Log {
    lines: VecDeque<Line>,
    ended: bool,
}

impl Merge {
    /// Of these logs.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self { logs: names.into_iter().map(|name| (name, Log::default())).collect() }
    }

    /// A line came.
    pub fn add(&mut self, log: &str, line: Line) {
        if let Some(log) = self.logs.get_mut(log) {
            log.lines.push_back(line);
        }
    }

    /// No more lines come.
    pub fn end(&mut self, log: &str) {
        if let Some(log) = self.logs.get_mut(log) {
            log.ended = true;
        }
    }

    /// Whether nothing comes any more.
    pub fn ended(&self) -> bool {
        self.logs.values().all(|log| log.ended && log.lines.is_empty())
    }

    /// How many lines of a log wait.
    pub fn waiting(&self, log: &str) -> usize {
        self.logs.get(log).map_or(0, |log| log.lines.len())
    }

    /// The oldest line, when none of another log can be older: each has one, or has ended. With `now`, also when one may
    /// still come: somebody looks on, and what comes later is shown later.
    pub fn next(&mut self, now: bool) -> Option<(String, Line)> {
        if !now && self.logs.values().any(|log| log.lines.is_empty() && !log.ended) {
            return None;
        }
        let oldest = self
            .logs
            .iter()
            .filter_map(|(name, log)| Some((log.lines.front()?.at, name)))
            .min()
            .map(|(_, n)| n.clone())?;
        let line = self.logs.get_mut(&oldest)?.lines.pop_front()?;
        Some((oldest, line))
    }
}

/// Fields of our JSON lines that are shown elsewhere, or to nobody.
const SHOWN: [&str; 5] = ["timestamp", "level", "message", "target", "span"];

/// A line for people: our own JSON as text, anything else as it was written.
pub fn text(instance: &str, line: &Line, paint: Paint) -> String {
    let at = line.at.strftime("%Y-%m-%d %H:%M:%S%.3fZ").to_string();
    let mut out = format!("{} {} ", paint.dim(&at), paint.bold(instance));
    let parsed = serde_json::from_str::<Value>(&line.text).ok();
    let Some(fields) = parsed.as_ref().and_then(Value::as_object).filter(|fields| fields.contains_key("message"))
    else {
        out.push_str(&line.text);
        return out;
    };
    let word = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let level = match word("level") {
        "ERROR" => paint.bad("ERROR"),
        "WARN" => paint.warn("WARN"),
        other => paint.dim(other),
    };
    let _ = write!(out, "{level} {}", word("message"));
    for (name, value) in fields.iter().filter(|(name, _)| !SHOWN.contains(&name.as_str())) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(out, " {}", paint.dim(&format!("{name}={value}")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(second: i64, text: &str) -> Line {
        Line { at: Timestamp::from_second(second).unwrap(), text: text.into() }
    }

    fn shown(merge: &mut Merge, now: bool) -> String {
        std::iter::from_fn(|| merge.next(now)).map(|(log, line)| format!("{log}:{} ", line.text)).collect()
    }

    #[test]
    fn a_line_waits_until_none_can_be_older() {
        let mut merge = Merge::new(["a".into(), "b".into()]);
        merge.add("a", line(2, "two"));
        merge.add("a", line(4, "four"));
        assert_eq!(shown(&mut merge, false), "", "b may have an older one");
        merge.add("b", line(1, "one"));
        merge.add("b", line(3, "three"));
        assert_eq!(shown(&mut merge, false), "b:one a:two b:three ");
        merge.end("b");
        assert_eq!(shown(&mut merge, false), "a:four ");
        assert!(!merge.ended());
        merge.end("a");
        assert!(merge.ended());
    }

    #[test]
    fn who_looks_on_is_not_kept_waiting() {
        let mut merge = Merge::new(["a".into(), "b".into()]);
        merge.add("a", line(2, "two"));
        assert_eq!(shown(&mut merge, true), "a:two ");
    }

    #[test]
    fn our_lines_are_shown_as_text_and_others_as_they_are() {
        let ours = r#"{"timestamp":"x","level":"WARN","message":"lost","lag":3,"why":"no answer","target":"t"}"#;
        let shown = |written: &str| text("db-1", &line(0, written), Paint::new(false));
        assert_eq!(shown(ours), "1970-01-01 00:00:00.000Z db-1 WARN lost lag=3 why=no answer");
        assert_eq!(shown("LOG: ready"), "1970-01-01 00:00:00.000Z db-1 LOG: ready");
        let parsed = Line::parse("2026-11-30T10:01:00.123456789Z LOG: ready\n").unwrap();
        assert_eq!((parsed.at.subsec_nanosecond(), parsed.text.as_str()), (123_456_789, "LOG: ready"));
        assert_eq!(Line::parse("no time"), None);
    }
}
