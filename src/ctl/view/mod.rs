//! What is shown, and what is asked for: from what was read to text, JSON and objects. No I/O, no clock.

pub mod logs;
pub mod next;
pub mod redact;
pub mod restore;
pub mod status;
pub mod why;

use jiff::Timestamp;

/// Colours, where they are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// Without colours.
    pub const PLAIN: Self = Self { on: false };

    /// With colours or without.
    pub fn new(on: bool) -> Self {
        Self { on }
    }
    fn code(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
    /// A heading.
    pub fn bold(self, text: &str) -> String {
        self.code("1", text)
    }
    /// Of less weight.
    pub fn dim(self, text: &str) -> String {
        self.code("2", text)
    }
    /// As it should be.
    pub fn good(self, text: &str) -> String {
        self.code("32", text)
    }
    /// Worth a look.
    pub fn warn(self, text: &str) -> String {
        self.code("33", text)
    }
    /// Wrong.
    pub fn bad(self, text: &str) -> String {
        self.code("31", text)
    }
}

/// A moment, for people.
pub fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// A moment as the status writes it, for people; what is no moment stays as it is.
pub fn moment_of(text: &str) -> String {
    text.parse().map_or_else(|_| text.to_owned(), moment)
}

/// How long something took, or is ago, in its largest unit. Clocks of two machines differ: the future is now.
pub fn span(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s @ 7200..172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

/// How long ago it was.
pub fn ago(now: Timestamp, at: Timestamp) -> String {
    format!("{} ago", span(now.as_second() - at.as_second()))
}

/// The same of a moment as the status writes it.
pub fn ago_of(now: Timestamp, text: &str) -> String {
    text.parse().map_or_else(|_| text.to_owned(), |at| ago(now, at))
}

/// A number of bytes, for people.
pub fn bytes(number: i64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number;
    let mut rest = 0;
    let mut unit = 0;
    while value >= 1024 && unit + 1 < units.len() {
        rest = value % 1024;
        value /= 1024;
        unit += 1;
    }
    let unit_name = units.get(unit).copied().unwrap_or_default();
    if unit == 0 || value >= 10 {
        format!("{value} {unit_name}")
    } else {
        format!("{value}.{} {unit_name}", rest * 10 / 1024)
    }
}

/// Lines under a heading, in columns that are as wide as their longest cell. `paint` colours a cell after it was measured.
pub fn table(rows: &[Vec<String>], indent: &str, paint: impl Fn(usize, usize, &str) -> Option<String>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = indent.to_owned();
        for (column, cell) in row.iter().enumerate() {
            let pad = widths.get(column).copied().unwrap_or(0).saturating_sub(cell.chars().count());
            line.push_str(paint(number, column, cell).as_deref().unwrap_or(cell));
            if column + 1 < row.len() {
                line.push_str(&" ".repeat(pad + 2));
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_are_short() {
        let shown = [0, 1023, 1024, 1_600_000, 20_000_000, i64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "19 MiB", "8388607 TiB"]);
        let shown = [-5, 119, 120, 7199, 7200, 172_800].map(span);
        assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 d"]);
    }

    #[test]
    fn colours_come_only_where_they_are_wanted() {
        assert_eq!(Paint::new(false).bad("x"), "x");
        assert_eq!(Paint::new(true).bad("x"), "\u{1b}[31mx\u{1b}[0m");
        let rows = [vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned(), "c".to_owned()]];
        let painted = table(&rows, "", |_, column, cell| (column == 0).then(|| Paint::new(true).good(cell)));
        assert!(painted.starts_with("\u{1b}[32ma\u{1b}[0m     b\n"), "{painted:?}");
    }
}
