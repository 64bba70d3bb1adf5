//! A command, and what it cost: time, processor, memory of it and of all that it started.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Memory is looked at this often.
const EVERY: Duration = Duration::from_millis(100);

/// What a command cost.
#[derive(Debug, Clone)]
pub struct Cost {
    /// From its start to its end.
    pub seconds: f64,
    /// Of user and system, with all the processes that it waited for.
    pub cpu: f64,
    /// The most memory that it and all below it had at once, in MiB. What processes share counts once (PSS).
    pub peak: f64,
    /// What it said.
    pub said: String,
}

/// Runs it as the user of PostgreSQL; one that fails is an error with what it said.
pub fn run(command: &[String], variables: &[(String, String)], folder: &Path) -> Result<Cost, String> {
    let began = Instant::now();
    // The shell counts the processor time of everything that it waited for.
    let mut child = super::place::as_postgres("bash", folder)
        .args(["-c", "TIMEFORMAT='cpu %U %S'; time \"$@\"", "bash"])
        .args(command)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let (peak, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let pid = child.id();
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let (said, complained, status) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                peak.fetch_max(below(pid).into_iter().map(memory).sum(), Ordering::Relaxed);
                std::thread::park_timeout(EVERY);
            }
        });
        let complaints = scope.spawn(|| text(&mut err));
        let said = text(&mut out);
        let complained = complaints.join().unwrap_or_default();
        let status = child.wait();
        ended.store(true, Ordering::Relaxed);
        (said, complained, status)
    });
    let seconds = began.elapsed().as_secs_f64();
    if !status.is_ok_and(|status| status.success()) {
        return Err(format!("{command:?} failed: {said}{complained}"));
    }
    let cpu = complained.lines().rev().find_map(|line| line.strip_prefix("cpu "));
    let cpu = cpu.map(|times| times.split(' ').filter_map(|time| time.parse::<f64>().ok()).sum());
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let peak = peak.into_inner() as f64 / 1024.0;
    Ok(Cost { seconds, cpu: cpu.unwrap_or(f64::NAN), peak, said })
}

fn text(from: &mut Option<impl std::io::Read>) -> String {
    let mut text = String::new();
    if let Some(from) = from {
        let _ = from.read_to_string(&mut text);
    }
    text
}

/// A process and all below it. Those that end meanwhile are none.
fn below(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(pid) = all.get(at) {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children: Vec<u32> = threads
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
            .flat_map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        all.extend(children);
        at += 1;
    }
    all
}

/// In KiB.
fn memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// What a program says of itself.
pub fn version(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(|_| "?".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
