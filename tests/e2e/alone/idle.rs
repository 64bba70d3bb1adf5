//! Nobody changes anything: neither does the operator.

use std::time::Duration;

use crate::harness::{Result, alone, writes_while_idle};

/// `make bench` measures 2 minutes.
const WATCHED: Duration = Duration::from_secs(30);

#[tokio::test]
async fn idle_operator_writes_nothing() -> Result {
    alone("idle", |_, case| async move {
        let writes = writes_while_idle(&case, WATCHED).await?;
        assert!(writes.is_empty(), "writes within {WATCHED:?} of three settled clusters: {writes:#?}");
        Ok(())
    })
    .await
}
