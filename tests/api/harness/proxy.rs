//! The network between one client and the API server, which can be stopped at a chosen moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const OPEN: i64 = i64::MAX;

/// Passes bytes on. What the client sends can be held back after so many pieces; a request is one piece.
pub struct Proxy {
    port: u16,
    /// Pieces that still pass.
    left: Arc<AtomicI64>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let left = Arc::new(AtomicI64::new(OPEN));
        let passes = Arc::clone(&left);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
                let (client_in, client_out) = client.into_split();
                let (server_in, server_out) = server.into_split();
                tokio::spawn(pass(client_in, server_out, Arc::clone(&passes)));
                tokio::spawn(pass(server_in, client_out, Arc::new(AtomicI64::new(OPEN))));
            }
        });
        Self { port, left, task }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// So many more pieces pass from the client; what comes after waits.
    pub fn hold_after(&self, pieces: i64) {
        self.left.store(pieces, Ordering::SeqCst);
    }

    /// Waits until a piece is held back.
    pub async fn holds(&self) {
        super::eventually("a request that is held back", Duration::from_secs(20), async || {
            (self.left.load(Ordering::SeqCst) < 0).then_some(())
        })
        .await;
    }

    /// Everything passes again, what was held back first.
    pub fn open(&self) {
        self.left.store(OPEN, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf, left: Arc<AtomicI64>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if left.load(Ordering::SeqCst) != OPEN && left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            while left.load(Ordering::SeqCst) != OPEN {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
