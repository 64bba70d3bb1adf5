//! What the documentation says is held against its sources: the fields against the definitions, the commands against the
//! programs, targets, files, values and flags that there are, the links against the files and headings that they lead to.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod commands;
mod fields;
mod links;
mod markdown;
mod names;
mod shell;

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The README and every page of docs, runbooks included, with their paths in the tree.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths = vec![PathBuf::from("README.md")];
    for folder in ["docs", "docs/runbooks"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name();
            if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                paths.push(Path::new(folder).join(name));
            }
        }
    }
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), read(&root().join(path)))).collect()
}
