//! The definition that people install is the one that the program prints.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::path::Path;
use std::process::Command;

#[test]
fn files_are_what_the_program_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_hello-operator")).arg("crds").output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    for file in
        ["crds/helloopperators.terry.com.yaml", "charts/hello-operator/files/crds/helloopperators.terry.com.yaml"]
    {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_default();
        // Not assert_eq!: it would print the whole definition twice.
        assert!(text == printed, "{file} is not what 'hello-operator crds' prints: run 'make crds'");
    }
}
