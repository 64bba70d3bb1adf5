//! Medians with their spread, beside what was promised.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use crate::harness::{Result, Suite};

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
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        if sorted.len() % 2 == 1 { at(middle) } else { f64::midpoint(at(middle.saturating_sub(1)), at(middle)) }
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

/// When, what, and on what.
pub fn machine() -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output =
            std::process::Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<_> = load.split(' ').take(3).collect();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes: f64 = memory.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0.0);
    format!(
        "{}, commit {}, {cores} cores, {:.0} GiB, kernel {}, load at the end {}",
        jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC"),
        said("git", &["describe", "--always", "--dirty"]),
        kilobytes / 1_048_576.0,
        said("uname", &["-r"]),
        load.join(" ")
    )
}

#[expect(clippy::print_stdout, reason = "printing is what the benchmark is for")]
pub fn show(text: &str) {
    println!("{text}");
}
