//! Against a real API server, and nothing else: leadership, the CustomResourceDefinition, the operator's processes.
//!
//! One API server serves all tests, each in a namespace of its own; a harness of our own ends it with the last one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may fail loudly, and says what it measured"
)]

mod agreement;
mod backups;
mod definition;
mod degraded;
mod generator;
mod handover;
mod harness;
mod lease;
mod manifests;
mod namespaces;
mod processes;
mod scrapes;

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

use harness::Plane;

/// A test that shares the machine with others.
fn together<F: Future<Output = ()>>(
    plane: &Arc<Plane>,
    name: &str,
    test: impl FnOnce(Arc<Plane>) -> F + Send + 'static,
) -> Trial {
    let plane = Arc::clone(plane);
    Trial::test(name, move || {
        runtime().block_on(async {
            let _shared = plane.attention.read().await;
            test(Arc::clone(&plane)).await;
        });
        Ok(())
    })
}

/// A test that stops the API server, or keeps it busy.
fn alone<F: Future<Output = ()>>(
    plane: &Arc<Plane>,
    name: &str,
    test: impl FnOnce(Arc<Plane>) -> F + Send + 'static,
) -> Trial {
    let plane = Arc::clone(plane);
    Trial::test(name, move || {
        runtime().block_on(async {
            let _own = plane.attention.write().await;
            test(Arc::clone(&plane)).await;
        });
        Ok(())
    })
}

/// A number that a person gave to this run.
fn number_from_environment(name: &str) -> Option<u64> {
    #[allow(clippy::disallowed_methods, reason = "a test is not configured anywhere else")]
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They wait more than they work.
    arguments.test_threads.get_or_insert(8);
    let plane = Arc::new(runtime().block_on(Plane::start()));
    let trials = [
        definition::trials(&plane),
        lease::trials(&plane),
        namespaces::trials(&plane),
        agreement::trials(&plane),
        processes::trials(&plane),
        degraded::trials(&plane),
        handover::trials(&plane),
        backups::trials(&plane),
        manifests::trials(&plane),
        scrapes::trials(&plane),
    ]
    .into_iter()
    .flatten()
    .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(plane);
    conclusion.exit_code()
}
