//! Memory does not grow with the data. Measured in a process of its own, by what the kernel says was its peak.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hello_operator::backup::base::{BackupPlan, Progress};
use hello_operator::backup::target::{Bounds, Target};
use hello_operator::backup::{Store, restore};

use crate::proxy::{Fault, before};
use crate::world::{BOUNDS, Folder, Server, back_up, bytes, id, s3};

/// MiB on top of what the process had before; the promise.
const BOUND: u64 = 64;
const CHILD: &str = "HELLO_STORE_CHILD";

/// From `/proc/self/status`, in MiB.
fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn rate(bytes: u64, began: Instant) -> u64 {
    let millis = u64::try_from(began.elapsed().as_millis()).unwrap().max(1);
    bytes * 1000 / millis / 1_000_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the measured process; the test below starts it"]
async fn measured() {
    #[expect(clippy::disallowed_methods, reason = "the test's own switch")]
    let Ok(what) = std::env::var(CHILD) else { return };
    let mut what = what.split('|');
    let (address, data, parallel) = (what.next().unwrap(), what.next().unwrap(), what.next().unwrap());
    let target = match address.parse() {
        Ok(address) => Target::S3(s3(address)),
        Err(_) => Target::Volume { folder: address.into() },
    };
    // Hundreds of megabytes at once: a busy disk may take its time to put them together.
    let bounds = Bounds { silence: Duration::from_secs(20), call: Duration::from_secs(60), ..BOUNDS };
    let store = Store::open_with(&target, "db", bounds).unwrap();
    store.check().await.unwrap();
    let parallel = parallel.parse().unwrap();
    let before = status("VmRSS");
    let began = Instant::now();
    let plan = BackupPlan { parallel, ..BackupPlan::new(id(1), data) };
    let manifest = back_up(&store, &plan).await.unwrap();
    let taken = rate(manifest.summary.bytes, began);
    let took = status("VmHWM") - before;
    let dest = Folder::new();
    let began = Instant::now();
    restore::unpack(&store, &manifest, &dest.join("data"), parallel, &Arc::new(Progress::default())).await.unwrap();
    let restored = rate(manifest.summary.bytes, began);
    let after = status("VmHWM") - before;
    println!("measured {took} {after} {taken} {restored}");
}

fn measure(address: &str, data: &Folder, parallel: usize) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["memory::measured", "--exact", "--ignored", "--nocapture"])
        .env(CHILD, format!("{address}|{}|{parallel}", data.0.display()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find_map(|line| line.split_once("measured ")).unwrap().1;
    let figures: Vec<u64> = line.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    let kind = if address.starts_with('/') { "volume" } else { "s3" };
    println!(
        "{kind}, {parallel} at once: peak +{} MiB (backup), +{} MiB (and restore); {} MB/s out, {} MB/s back",
        figures[0], figures[1], figures[2], figures[3]
    );
    assert!(figures[0] <= BOUND && figures[1] <= BOUND, "{kind} {parallel}: {figures:?} MiB, MB/s");
}

fn data() -> Arc<Folder> {
    let data = Folder::new();
    std::fs::create_dir_all(data.join("base/1")).unwrap();
    for number in 0..4_u64 {
        std::fs::write(data.join(&format!("base/1/{number}")), bytes(50 << 20, number)).unwrap();
    }
    std::fs::write(data.join("base/1/large"), bytes(200 << 20, 9)).unwrap();
    Arc::new(data)
}

#[test]
fn memory_does_not_grow_with_the_data() {
    let data = data();
    let server = Server::start();
    measure(&server.address.to_string(), &data, 2);
    let volume = Folder::new();
    measure(volume.0.to_str().unwrap(), &data, 2);
}

/// What is read faster than it can be sent waits on disk, not in memory.
#[tokio::test(flavor = "multi_thread")]
async fn memory_does_not_grow_with_a_slow_destination() {
    let data = data();
    for parallel in [1, 2, 4] {
        let server = Server::start();
        let proxy = before(server.address).await;
        proxy.plan.fault("PUT", "partNumber", usize::MAX, Fault::Delay(Duration::from_millis(500)));
        let address = proxy.address.to_string();
        let folder = Arc::clone(&data);
        tokio::task::spawn_blocking(move || measure(&address, &folder, parallel)).await.unwrap();
    }
}
