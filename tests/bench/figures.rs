//! Medians with their spread, beside what was promised.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use crate::harness::{Result, Suite};
use crate::numbers::{machine, median, show};

const RESULTS: &str = "docs/figures.md";

/// One figure.
struct Figure {
    what: &'static str,
    unit: &'static str,
    values: Vec<f64>,
    /// The median must be below this.
    target: f64,
}

impl Figure {
    fn median(&self) -> f64 {
        median(&self.values)
    }

    fn reached(&self) -> bool {
        self.median() < self.target
    }

    fn line(&self) -> String {
        let Self { what, unit, values, target } = self;
        let (least, most) =
            (values.iter().copied().fold(f64::INFINITY, f64::min), values.iter().copied().fold(0.0, f64::max));
        let verdict = if self.reached() { "yes" } else { "**no**" };
        let (median, count) = (self.median(), values.len());
        format!("| {what} | {median:.1} {unit} | {least:.1} to {most:.1} | {count} | {target} {unit} | {verdict} |")
    }
}

/// All that was measured.
#[derive(Default)]
pub struct Figures {
    all: Vec<Figure>,
}

impl Figures {
    /// Adds one. The median must be below the target.
    pub fn add(&mut self, what: &'static str, unit: &'static str, target: f64, values: Vec<f64>) {
        let figure = Figure { what, unit, values, target };
        show(&figure.line());
        self.all.push(figure);
    }

    /// The binary and the image.
    pub async fn sizes(&mut self, suite: &Suite) -> Result {
        const MEGABYTE: f64 = 1e6;
        let size = |path: &Path| -> Result<f64> { Ok(std::fs::metadata(path)?.len() as f64 / MEGABYTE) };
        self.add("binary, on disk", "MB", 25.0, vec![size(&suite.binary().await?)?]);
        self.add("image, uncompressed", "MB", 40.0, vec![size(suite.archive())?]);
        Ok(())
    }

    pub fn all_reached(&self) -> bool {
        self.all.iter().all(Figure::reached)
    }

    /// Prints the table and appends it to the results.
    pub fn report(&self) -> Result {
        if self.all.is_empty() {
            return Ok(());
        }
        let mut text = format!("\n## {}\n\n", machine());
        text.push_str("| | median | spread | n | promised, below | reached |\n|---|---|---|---|---|---|\n");
        for figure in &self.all {
            writeln!(text, "{}", figure.line())?;
        }
        show(&text);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(RESULTS);
        std::fs::File::options().append(true).open(path)?.write_all(text.as_bytes())?;
        Ok(())
    }
}
