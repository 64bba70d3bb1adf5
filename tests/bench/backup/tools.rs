//! Those that are measured: each archives, backs up and restores in its own way, into the same store.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use super::Result;
use super::ours::{Answer, Errand, What};
use super::place::{BUCKET, KEY, Place, Postgres, REGION, SECRET, as_postgres};
use super::watch::{Cost, run, version};

/// How PostgreSQL recovers what one of the others restored.
const PROMOTED: &str = "hot_standby = off\narchive_mode = off\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    Ours,
    PgBackRest,
    Barman,
}

pub const ALL: [Tool; 3] = [Tool::Ours, Tool::PgBackRest, Tool::Barman];

impl Tool {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "hello-operator",
            Self::PgBackRest => "pgBackRest",
            Self::Barman => "barman-cloud",
        }
    }
}

/// Where the tools are, and with what they work.
pub struct Bench<'a> {
    pub place: &'a Place,
    /// This program, where the user of PostgreSQL can run it.
    pub own: PathBuf,
    /// Our binary.
    pub program: PathBuf,
    /// barman's folder.
    pub barman: PathBuf,
}

/// What the archiver asks, until it is dropped.
pub struct Helper(Option<Child>);

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A base backup.
pub struct Backup {
    pub cost: Cost,
    pub stored: u64,
    /// Memory on top of what the process had before, in MiB, where that can be told.
    pub on_top: Option<f64>,
}

impl Bench<'_> {
    /// What the environment of PostgreSQL and of the tools says.
    pub fn variables(&self) -> Vec<(String, String)> {
        let ca = self.place.ca.display().to_string();
        [
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_DEFAULT_REGION", REGION),
            ("AWS_CA_BUNDLE", &ca),
            ("HELLO_ENGINE_PROGRAM", &self.program.display().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    pub fn versions(&self) -> String {
        let barman = version(&self.barman.join("bin/barman-cloud-backup").display().to_string(), &["--version"]);
        format!("{}, {barman}", version("pgbackrest", &["version"]))
    }

    fn errand(&self, what: What, source: &Postgres<'_>) -> Errand {
        Errand {
            what,
            store_port: self.place.port,
            ca: self.place.ca.clone(),
            data: source.data.clone(),
            socket: source.socket.clone(),
            port: source.port,
            program: self.program.clone(),
            archive_socket: self.place.join("archive.sock"),
        }
    }

    fn errand_command(&self, errand: &Errand) -> Result<Vec<String>> {
        Ok(vec![self.own.display().to_string(), "errand".into(), serde_json::to_string(errand)?])
    }

    /// Writes its configuration; what it needs is there when this returns.
    pub fn prepare(&self, tool: Tool, source: &Postgres<'_>) -> Result<Helper> {
        match tool {
            Tool::Ours => {
                let command = self.errand_command(&self.errand(What::Archive, source))?;
                let mut child = as_postgres(&self.own.display().to_string(), &self.place.root);
                child.args(command.iter().skip(1)).envs(self.variables()).stdin(Stdio::null());
                Ok(Helper(Some(child.spawn()?)))
            }
            Tool::PgBackRest => {
                for folder in ["pgbackrest-log", "pgbackrest-lock", "pgbackrest-spool"] {
                    let _ = std::fs::remove_dir_all(self.place.join(folder));
                    std::fs::create_dir_all(self.place.join(folder))?;
                }
                std::fs::write(self.place.join("pgbackrest.conf"), self.configuration(source))?;
                self.place.own()?;
                self.measured(&self.pgbackrest(&["stanza-create"]))?;
                Ok(Helper(None))
            }
            Tool::Barman => Ok(Helper(None)),
        }
    }

    pub fn archive_command(&self, tool: Tool, source: &Postgres<'_>) -> String {
        match tool {
            Tool::Ours => self.errand(What::Archive, source).archiver().archive_command(),
            Tool::PgBackRest => format!("{} %p", self.pgbackrest(&["archive-push"]).join(" ")),
            Tool::Barman => {
                let options = ["--zstd", "--compression-level", "3"];
                format!("{} %p", self.barman("wal-archive", &options, &[]).join(" "))
            }
        }
    }

    pub fn back_up(&self, tool: Tool, source: &Postgres<'_>) -> Result<Backup> {
        let command = match tool {
            Tool::Ours => self.errand_command(&self.errand(What::BackUp, source))?,
            Tool::PgBackRest => self.pgbackrest(&["--type=full", "backup"]),
            Tool::Barman => {
                let (socket, port) = (source.socket.display().to_string(), source.port.to_string());
                let from = ["-h", &socket, "-p", &port, "-U", "postgres"];
                let how = ["--lz4", "-J", "2", "--immediate-checkpoint"];
                self.barman("backup", &[&how[..], &from[..]].concat(), &[])
            }
        };
        let cost = self.measured(&command)?;
        if tool == Tool::Ours {
            let answer: Answer = serde_json::from_str(&cost.said)?;
            return Ok(Backup { cost, stored: answer.stored, on_top: Some(answer.peak - answer.before) });
        }
        let stored = self.place.join("s3").join(BUCKET).join(match tool {
            Tool::Barman => "barman/db/base",
            Tool::Ours | Tool::PgBackRest => "pgbackrest/backup",
        });
        let said = version("du", &["-sb", &stored.display().to_string()]);
        Ok(Backup { cost, stored: said.split_whitespace().next().unwrap_or_default().parse()?, on_top: None })
    }

    /// Restores the newest backup; what came out is ready to be started.
    pub fn restore(&self, tool: Tool, source: &Postgres<'_>, to: &Path) -> Result<(Cost, PathBuf)> {
        std::fs::create_dir_all(to)?;
        self.place.own()?;
        match tool {
            Tool::Ours => {
                let errand = self.errand(What::Restore(to.to_owned()), source);
                let cost = self.measured(&self.errand_command(&errand)?)?;
                let data = hello_operator::agent::volume::Layout::new(to, None).pgdata();
                // It is promoted already; the agent would write its own here.
                std::fs::write(data.join("postgresql.conf"), "archive_mode = off\n")?;
                std::fs::write(data.join("pg_hba.conf"), "local all all trust\n")?;
                Ok((cost, data))
            }
            Tool::PgBackRest => {
                let data = to.join("data");
                let path = format!("--pg1-path={}", data.display());
                let cost = self.measured(&self.pgbackrest(&[&path, "restore"]))?;
                append(&data.join("postgresql.auto.conf"), PROMOTED)?;
                Ok((cost, data))
            }
            Tool::Barman => {
                let data = to.join("data");
                let listed = self.measured(&self.barman("backup-list", &[], &[]))?.said;
                let id = listed.lines().last().and_then(|line| line.split_whitespace().next()).ok_or("no backup")?;
                let cost = self.measured(&self.barman("restore", &[], &[id, &data.display().to_string()]))?;
                let fetch = self.barman("wal-restore", &[], &["%f", "%p"]).join(" ");
                append(&data.join("postgresql.auto.conf"), &format!("{PROMOTED}restore_command = '{fetch}'\n"))?;
                std::fs::write(data.join("recovery.signal"), "")?;
                Ok((cost, data))
            }
        }
    }

    fn measured(&self, command: &[String]) -> Result<Cost> {
        Ok(run(command, &self.variables(), &self.place.root)?)
    }

    fn pgbackrest(&self, arguments: &[&str]) -> Vec<String> {
        let conf = format!("--config={}", self.place.join("pgbackrest.conf").display());
        let all = ["pgbackrest", &conf, "--stanza=db", "--log-level-console=warn"];
        all.into_iter().chain(arguments.iter().copied()).map(str::to_owned).collect()
    }

    fn barman(&self, what: &str, options: &[&str], last: &[&str]) -> Vec<String> {
        let program = self.barman.join(format!("bin/barman-cloud-{what}")).display().to_string();
        let endpoint = format!("https://localhost:{}", self.place.port);
        let url = format!("s3://{BUCKET}/barman");
        let all = [program.as_str(), "--endpoint-url", &endpoint, "--addressing-style", "path"];
        let all = all.into_iter().chain(options.iter().copied()).chain([url.as_str(), "db"]);
        all.chain(last.iter().copied()).map(str::to_owned).collect()
    }

    fn configuration(&self, source: &Postgres<'_>) -> String {
        let at = |name: &str| self.place.join(name).display().to_string();
        format!(
            "[global]\nrepo1-type=s3\nrepo1-path=/pgbackrest\nrepo1-s3-bucket={BUCKET}\nrepo1-s3-endpoint=localhost\n\
             repo1-s3-region={REGION}\nrepo1-s3-key={KEY}\nrepo1-s3-key-secret={SECRET}\nrepo1-s3-uri-style=path\n\
             repo1-storage-port={}\nrepo1-storage-ca-file={}\nrepo1-retention-full=9\nlog-path={}\nlock-path={}\nspool-path={}\n\
             compress-type=zst\ncompress-level=3\nprocess-max=2\nstart-fast=y\narchive-async=y\n\
             [db]\npg1-path={}\npg1-port={}\npg1-socket-path={}\npg1-user=postgres\n",
            self.place.port,
            self.place.ca.display(),
            at("pgbackrest-log"),
            at("pgbackrest-lock"),
            at("pgbackrest-spool"),
            source.data.display(),
            source.port,
            source.socket.display(),
        )
    }
}

fn append(path: &Path, text: &str) -> Result {
    use std::io::Write;
    Ok(std::fs::File::options().append(true).open(path)?.write_all(text.as_bytes())?)
}
