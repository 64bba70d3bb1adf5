//! Resident memory of our processes in Pods.

use crate::harness::Result;

/// In megabytes, of the process of a Pod whose command line has these words.
pub fn resident(pod_uid: &str, words: &str) -> Result<f64> {
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        // A process that ends meanwhile is not the one.
        let read = |file: &str| std::fs::read_to_string(path.join(file)).unwrap_or_default();
        if !read("cgroup").contains(pod_uid) || !read("cmdline").replace('\0', " ").contains(words) {
            continue;
        }
        let status = read("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("a process has a size")?;
        let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
        return Ok(kilobytes * 1024.0 / 1e6);
    }
    Err(format!("no process {words:?} in Pod {pod_uid}").into())
}
