//! What a cluster could leave behind on the machine, before and after.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Not the number of a cluster that anyone works with: this one is killed and ended.
const NUMBER: &str = "9";

pub fn check() -> Result<()> {
    let lc = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/lc");
    let lc = |arguments: &[&str]| {
        let mut command = Command::new(&lc);
        command.args(arguments).env("HELLO_CLUSTER", NUMBER).env_remove("HELLO_RUN").stdin(Stdio::null());
        command
    };
    let run = |arguments: &[&str]| -> Result<()> {
        let output = lc(arguments).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("lc {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
    };

    run(&["down"])?;
    let before = snapshot()?;

    // Killed in the middle, with processes and namespaces half made.
    let mut killed = lc(&["up", "1"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !Path::new("/run/netns/hello9-node1").exists() {
        if Instant::now() > deadline || killed.try_wait()?.is_some() {
            return Err("the start made no node".into());
        }
        std::thread::yield_now();
    }
    killed.kill()?;
    killed.wait()?;

    run(&["up", "1"])?;
    run(&["down"])?;
    assert_eq!(snapshot()?, before, "after a killed start, a start and an end");
    run(&["up", "1"])?;
    run(&["up", "2"])?;
    run(&["down"])?;
    assert_eq!(snapshot()?, before, "after a second one with a node added");
    Ok(())
}

/// What this cluster's number appears in, and what belongs to the whole machine. Other clusters may come and go meanwhile.
fn snapshot() -> Result<BTreeMap<&'static str, Vec<String>>> {
    let ours = |line: &&str| ["hello9", "cluster-9", "10.250.9.", "10.235."].iter().any(|mark| line.contains(mark));
    let select = |text: String| text.lines().filter(ours).map(str::to_owned).collect::<Vec<_>>();
    let output = |program: &str, arguments: &[&str]| -> Result<String> {
        Ok(String::from_utf8(Command::new(program).args(arguments).output()?.stdout)?)
    };
    let mut found = BTreeMap::new();
    found.insert("mounts", select(fs::read_to_string("/proc/self/mountinfo")?));
    found.insert("addresses", select(output("ip", &["-o", "address"])?));
    found.insert("routes", select(output("ip", &["route"])?));
    found.insert("namespaces", select(output("ip", &["netns", "list"])?));
    found.insert("cgroups", select(output("find", &["/sys/fs/cgroup", "-type", "d"])?));
    found.insert("processes", select(processes()?));
    found.insert("files", select(output("find", &["/tmp", "/run", "-maxdepth", "2"])?));
    for (name, folder) in [("/var/lib", "/var/lib"), ("/var/log", "/var/log"), ("/opt", "/opt"), ("/etc", "/etc")] {
        let mut names: Vec<_> = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        names.sort();
        found.insert(name, names);
    }
    let others = output("ip", &["netns", "list"])?.contains("-net");
    if !others {
        let names = [
            "fs/inotify/max_user_instances",
            "vm/overcommit_memory",
            "vm/panic_on_oom",
            "kernel/panic",
            "kernel/panic_on_oops",
        ];
        let values = names.iter().map(|name| Ok(fs::read_to_string(Path::new("/proc/sys").join(name))?));
        found.insert("sysctls", values.collect::<Result<_>>()?);
    }
    Ok(found)
}

fn processes() -> Result<String> {
    let mut lines = String::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        // A process that ends meanwhile is none.
        if let Ok(line) = fs::read_to_string(entry.path().join("cmdline")) {
            // This test's own line names its binary, never the cluster.
            lines.push_str(&line.replace('\0', " "));
            lines.push('\n');
        }
    }
    Ok(lines)
}
