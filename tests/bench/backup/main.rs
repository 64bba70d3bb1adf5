//! Backup and restore beside the tools that others use: the same database, the same S3 server, the same machine.
//! `make bench-backup`; docs/figures-backup.md.

#[path = "../numbers.rs"]
mod numbers;
mod ours;
mod place;
mod tools;
mod watch;
#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "of the engine's tests, this needs only a part"
)]
#[path = "../../engine/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use numbers::{machine, median, show};
use place::{Place, Postgres};
use tools::{ALL, Bench, Tool};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const RESULTS: &str = "docs/figures-backup.md";
/// Segments that wait when archiving begins.
const SEGMENTS: u64 = 24;

/// What is measured, in the order of the table.
const FIGURES: [&str; 10] = [
    "base backup, MB/s",
    "base backup, s",
    "base backup, CPU s",
    "base backup, peak MiB",
    "base backup, peak on top of the process before, MiB",
    "stored, MB",
    "WAL, segments/s",
    "restore, s",
    "restore, CPU s",
    "restore to first query, s",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let outcome = match arguments.get(1).map(String::as_str) {
        Some("errand") => errand(arguments.get(2).map_or("", String::as_str)),
        _ => measure(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error.to_string()),
    }
}

/// The process that works as the agent does, on as many threads.
fn errand(text: &str) -> Result {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build()?;
    runtime.block_on(ours::run(serde_json::from_str(text)?))
}

#[expect(clippy::disallowed_methods, reason = "the benchmark's own switches")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// A copy of a program where the user of PostgreSQL can run it.
fn reachable(program: &Path, to: &Path) -> Result<PathBuf> {
    std::fs::copy(program, to)?;
    Ok(to.to_owned())
}

fn measure() -> Result {
    let size: u64 = variable("SIZE").and_then(|text| text.parse().ok()).unwrap_or(2048);
    let rounds: usize = variable("N").and_then(|text| text.parse().ok()).unwrap_or(3);
    let only = variable("ONLY").unwrap_or_default();
    let server = variable("STORE").ok_or("STORE names the S3 server: make bench-backup does that")?;
    let barman = variable("BARMAN").ok_or("BARMAN names barman's folder: make bench-backup does that")?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let root = std::env::temp_dir().join(format!("hello-bench-{}", std::process::id()));
    let place = Place::new(root, &server)?;
    let bench = Bench {
        own: reachable(&std::env::current_exe()?, &place.join("bench"))?,
        program: reachable(Path::new(env!("CARGO_BIN_EXE_hello-operator")), &place.join("hello-operator"))?,
        barman: barman.into(),
        place: &place,
    };
    show(&format!("fills a database of {size} MB"));
    let source = Postgres::create(&place, &bench.variables())?;
    source.fill(size)?;
    let (rows, bytes) = (source.rows()?, source.bytes()?);
    let mut values: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
    let mut outcome = Ok(());
    'rounds: for round in 1..=rounds {
        for (at, tool) in ALL.into_iter().enumerate().filter(|(_, tool)| tool.name().contains(&only)) {
            let measured = one(&bench, tool, &source, &rows, bytes);
            let measured = match measured {
                Ok(measured) => measured,
                Err(error) => {
                    outcome = Err(format!("{}: {error}", tool.name()).into());
                    break 'rounds;
                }
            };
            for (figure, value) in measured {
                show(&format!("{round}/{rounds} {}: {figure}: {value:.1}", tool.name()));
                values.entry((at, figure)).or_default().push(value);
            }
        }
    }
    // What was measured before something failed counts.
    let version = source.sql("SHOW server_version")?;
    let said = format!(
        "PostgreSQL {version}, {}; a data directory of {:.0} MB; load at the start {}",
        bench.versions(),
        megabytes(bytes),
        load.split(' ').take(3).collect::<Vec<_>>().join(" ")
    );
    report(&values, &said)?;
    outcome
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// A whole turn of one tool: WAL, base backup, restore, first query.
fn one(
    bench: &Bench<'_>,
    tool: Tool,
    source: &Postgres<'_>,
    rows: &str,
    bytes: u64,
) -> Result<Vec<(&'static str, f64)>> {
    bench.place.empty()?;
    source.archive("")?;
    let _helper = bench.prepare(tool, source)?;
    let command = bench.archive_command(tool, source);
    // What waits from the tool before is not measured.
    let before = source.write(1)?;
    source.archive(&command)?;
    source.archived(&before)?;
    source.archive("")?;
    let last = source.write(SEGMENTS)?;
    source.sql("CHECKPOINT")?;
    let began = Instant::now();
    source.archive(&command)?;
    source.archived(&last)?;
    let archiving = began.elapsed().as_secs_f64();

    let backup = bench.back_up(tool, source)?;
    let to = bench.place.join("restored");
    let began = Instant::now();
    let (restored, data) = bench.restore(tool, source, &to)?;
    let copy = Postgres::restored(bench.place, data)?;
    copy.start(&bench.variables())?;
    copy.recovered()?;
    let first = began.elapsed().as_secs_f64();
    if copy.rows()? != rows {
        return Err("what was restored has other rows".into());
    }
    drop(copy);
    std::fs::remove_dir_all(&to)?;
    let mut measured = vec![
        (FIGURES[0], megabytes(bytes) / backup.cost.seconds),
        (FIGURES[1], backup.cost.seconds),
        (FIGURES[2], backup.cost.cpu),
        (FIGURES[3], backup.cost.peak),
    ];
    measured.extend(backup.on_top.map(|on_top| (FIGURES[4], on_top)));
    #[expect(clippy::cast_precision_loss, reason = "a few")]
    let segments = SEGMENTS as f64;
    measured.extend([
        (FIGURES[5], megabytes(backup.stored)),
        (FIGURES[6], segments / archiving),
        (FIGURES[7], restored.seconds),
        (FIGURES[8], restored.cpu),
        (FIGURES[9], first),
    ]);
    Ok(measured)
}

/// Prints the table and appends it to the results.
fn report(values: &BTreeMap<(usize, &str), Vec<f64>>, said: &str) -> Result {
    if values.is_empty() {
        return Ok(());
    }
    let mut text = format!("\n## {}\n\n{said}.\n\n| median (least to most)", machine());
    for tool in ALL {
        write!(text, " | {}", tool.name())?;
    }
    text.push_str(" |\n|---|---|---|---|\n");
    for figure in FIGURES {
        write!(text, "| {figure}")?;
        for at in 0..ALL.len() {
            match values.get(&(at, figure)) {
                Some(all) => {
                    let (least, most) =
                        (all.iter().copied().fold(f64::INFINITY, f64::min), all.iter().copied().fold(0.0, f64::max));
                    write!(text, " | {:.1} ({least:.1} to {most:.1})", median(all))?;
                }
                None => text.push_str(" | "),
            }
        }
        text.push_str(" |\n");
    }
    show(&text);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(RESULTS);
    Ok(std::fs::File::options().append(true).create(true).open(path)?.write_all(text.as_bytes())?)
}

#[expect(clippy::print_stderr, reason = "a program's complaint")]
fn complain(text: &str) -> ExitCode {
    eprintln!("bench-backup: {text}");
    ExitCode::FAILURE
}
