//! `hello-operator inject`: copies this binary into a shared volume, so that any database image can run the agent.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Error;

/// Copies this very binary to `to`, in one step: an interrupted copy is never found there.
pub fn inject(to: &Path) -> Result<(), Error> {
    let mut temporary = to.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    fs::copy("/proc/self/exe", temporary).map_err(Error::io("copy this program to", temporary))?;
    fs::set_permissions(temporary, Permissions::from_mode(0o755)).map_err(Error::io("allow to run", temporary))?;
    File::open(temporary).and_then(|file| file.sync_all()).map_err(Error::io("sync", temporary))?;
    fs::rename(temporary, to).map_err(Error::io("move into place", to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_this_program_and_can_run() {
        let to = std::env::temp_dir().join(format!("hello-inject-{}", std::process::id()));
        inject(&to).unwrap();
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read(&to).unwrap(), fs::read(std::env::current_exe().unwrap()).unwrap());
        inject(&to).unwrap();
        fs::remove_file(to).unwrap();
    }
}
