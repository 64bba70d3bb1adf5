//! Sessions that write through the Service all the time, and keep a ledger of what was acknowledged.
//!
//! They run in this process, in the network of a node of their own, so that the gap between two acknowledgements is
//! measured and not the start of a psql.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hello_operator::api::names::Names;
use k8s_openapi::api::core::v1::Service;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Config};

use super::super::{Case, Result};
use super::ledger::{Ack, Ledger};
use super::netns;
use super::tls::Tls;

/// A lost SYN is repeated by a new connection, which may go elsewhere.
const CONNECT: Duration = Duration::from_millis(500);
const LOGIN: Duration = Duration::from_secs(3);
/// A commit that waits longer is given up, and not acknowledged.
const COMMIT: Duration = Duration::from_secs(3);
/// So many commits that nobody waits for any more may wait for replicas before a session waits with its next one.
const WAITING: i64 = 12;
/// Each so many rows are read again at once.
const READ_EACH: u64 = 16;

/// How hard it writes.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub sessions: u32,
    /// Between two rows of a session.
    pub pause: Duration,
}

impl Load {
    /// Enough to measure a gap to about 10 ms.
    pub const LIGHT: Self = Self { sessions: 4, pause: Duration::from_millis(15) };
    /// As much as it takes.
    pub const FULL: Self = Self { sessions: 8, pause: Duration::ZERO };
}

/// The running sessions. They end with it.
pub struct Writer {
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// An error with its causes: tokio-postgres says only "db error" itself.
fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// How to reach a cluster.
#[derive(Clone)]
struct Target {
    config: Config,
    address: SocketAddr,
    tls: Tls,
}

impl Writer {
    /// Makes the table and begins to write.
    pub async fn start(case: &Case, name: &str, load: Load) -> Result<Self> {
        let names = Names::new(name);
        let service = case.api::<Service>().get(&names.service_rw()).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).ok_or("the Service has an address")?;
        let host = format!("{}.{}.svc", names.service_rw(), case.namespace());
        let target = Target {
            config: case.uri(name).await?.parse()?,
            address: format!("{address}:5432").parse()?,
            tls: Tls::new(&case.secret(&names.secret_server(), "ca.crt").await?, &host)?,
        };
        let namespace = netns::client_node(case.suite()).await?.network_namespace().await?;
        let (ledger, stop) = (Arc::new(Ledger::default()), Arc::new(AtomicBool::new(false)));
        let writer = Self { ledger: ledger.clone(), stop: stop.clone() };
        let thread = netns::spawn(namespace, move || async move {
            let sessions = (0..load.sessions).map(|session| {
                let (target, ledger, stop) = (target.clone(), ledger.clone(), stop.clone());
                Session { number: session, next: 1, last: 0, target, ledger, stop, pause: load.pause }.run()
            });
            futures::future::join_all(sessions).await;
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        if thread.is_finished() {
            thread.join().map_err(|_| "the writer's thread panicked")??;
        }
        Ok(writer)
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Ends it; what is under way is not waited for, and not acknowledged.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Session {
    number: u32,
    next: u64,
    /// The last row that was acknowledged.
    last: u64,
    target: Target,
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    pause: Duration,
}

/// A connection, and whether the server warned on it.
struct Connection {
    client: Client,
    warned: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Session {
    async fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            if let Err(why) = self.connected().await {
                self.ledger.fail(sentence(why.as_ref()));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Writes until something fails.
    async fn connected(&mut self) -> Result {
        let connection = self.target.connect().await?;
        timeout(LOGIN, self.begin(&connection.client)).await.map_err(|_| "the first questions were not answered")??;
        let insert = connection.client.prepare("insert into acknowledged values ($1, $2)").await?;
        let session = i32::try_from(self.number)?;
        while !self.stop.load(Ordering::Relaxed) {
            let (number, sent) = (self.next, Instant::now());
            self.next += 1;
            connection.warned.store(false, Ordering::Relaxed);
            let row = i64::try_from(number)?;
            timeout(COMMIT, connection.client.execute(&insert, &[&session, &row]))
                .await
                .map_err(|_| "a commit did not return")??;
            if connection.warned.load(Ordering::Relaxed) {
                return Err("a commit returned with a warning".into());
            }
            self.ledger.acknowledge(Ack { session: self.number, number, sent, at: Instant::now() });
            self.last = number;
            if number % READ_EACH == 0 {
                timeout(LOGIN, self.read(&connection.client)).await.map_err(|_| "a read was not answered")??;
            }
            if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
        }
        Ok(())
    }

    /// Reads what was acknowledged before, and does not add to a queue of commits that already waits for replicas.
    async fn begin(&self, client: &Client) -> Result {
        client
            .batch_execute("create table if not exists acknowledged (session int, n bigint, primary key (session, n))")
            .await?;
        self.read(client).await?;
        let waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and usename = current_user";
        loop {
            let count: i64 = client.query_one(waiting, &[]).await?.try_get(0)?;
            if count < WAITING {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The last acknowledged row must be there, wherever the Service leads to a primary.
    async fn read(&self, client: &Client) -> Result {
        let question = "select pg_is_in_recovery(), exists (select from acknowledged where session = $1 and n = $2), \
                        inet_server_addr()::text";
        let row = client.query_one(question, &[&i32::try_from(self.number)?, &i64::try_from(self.last)?]).await?;
        let (replica, there): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
        if !replica && !there && self.last > 0 {
            let server: Option<String> = row.try_get(2)?;
            let (session, last) = (self.number, self.last);
            self.ledger.wrong(format!("row {last} of session {session} was acknowledged and is not on {server:?}"));
        }
        if replica { Err("the Service leads to a replica".into()) } else { Ok(()) }
    }
}

impl Target {
    async fn connect(&self) -> Result<Connection> {
        let stream = timeout(CONNECT, TcpStream::connect(self.address)).await.map_err(|_| "no connection")??;
        stream.set_nodelay(true)?;
        let login = self.config.connect_raw(stream, self.tls.clone());
        let (client, mut connection) = timeout(LOGIN, login).await.map_err(|_| "no login")??;
        let warned = Arc::new(AtomicBool::new(false));
        let warning = warned.clone();
        // A warning stands before the end of its command in the stream, so it is seen before the commit returns.
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notice(notice) = message
                    && notice.severity() == "WARNING"
                {
                    warning.store(true, Ordering::Relaxed);
                }
            }
        });
        Ok(Connection { client, warned, task })
    }
}
