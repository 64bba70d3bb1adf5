//! The definitions that people install are those that the program prints.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use hello_operator::api::names::{CRD_NAME, CRD_NAME_BACKUP};

#[test]
fn files_are_what_the_program_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_hello-operator")).arg("crds").output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    let documents: BTreeSet<&str> = printed.split("---\n").filter(|text| !text.is_empty()).collect();
    assert_eq!(documents.len(), 2);
    for folder in ["crds", "charts/hello-operator/files/crds"] {
        let read = |name: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(format!("{name}.yaml"));
            std::fs::read_to_string(path).unwrap_or_default()
        };
        let (operators, backups) = (read(CRD_NAME), read(CRD_NAME_BACKUP));
        // Not assert_eq!: it would print the whole definitions twice.
        let same = BTreeSet::from([operators.as_str(), backups.as_str()]) == documents;
        assert!(same, "{folder} is not what 'hello-operator crds' prints: run 'make crds'");
        assert!(operators.contains("kind: HelloOperator\n") && backups.contains("kind: HelloBackup\n"));
    }
}
