//! Which build this is.

/// Version of the program and of its chart.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of the sources, as `hack/binary` gives it; `unknown` in a build by hand.
pub const COMMIT: &str = match option_env!("HELLO_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// How it was built: with or without optimization.
pub const PROFILE: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// Both in a line, for `--version`.
pub fn line() -> String {
    format!("{VERSION} (commit {COMMIT}, {PROFILE} build)")
}
