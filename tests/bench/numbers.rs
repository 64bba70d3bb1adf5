//! What every benchmark says of its machine and of its values.

/// The value in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    if sorted.len() % 2 == 1 { at(middle) } else { f64::midpoint(at(middle.saturating_sub(1)), at(middle)) }
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
