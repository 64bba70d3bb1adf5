//! An application: a Pod with psql, and one that writes all the time.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::json;

use super::{Case, Result, SOON};
use crate::cluster::eventually;

const NAME: &str = "client";
const CONTAINER: &str = "client";

/// A Pod with psql.
#[derive(Clone)]
pub struct ClientPod {
    case: Case,
}

impl ClientPod {
    /// Starts it in the case's namespace.
    pub async fn start(case: &Case) -> Result<Self> {
        Self::start_on(case, None).await
    }

    /// The same on a node, where it matters which.
    pub async fn start_on(case: &Case, node: Option<&str>) -> Result<Self> {
        let selector = node.map(|node| json!({"kubernetes.io/hostname": node}));
        let pod = json!({"metadata": {"name": NAME}, "spec": {
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "nodeSelector": selector,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 999, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "containers": [{"name": CONTAINER, "image": "postgres:17", "command": ["sleep", "infinity"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": true},
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}]}});
        case.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let client = Self { case: case.clone() };
        eventually(SOON, "the client's Pod to run", || async {
            client.run(&["true"]).await.map_err(|error| error.to_string())
        })
        .await?;
        Ok(client)
    }

    /// Runs a command in it.
    pub async fn run(&self, command: &[&str]) -> Result<String> {
        Ok(self.case.suite().cluster().pod(self.case.namespace(), NAME).run(CONTAINER, command).await?)
    }

    /// Runs a statement over the network, with whatever libpq takes as a connection.
    pub async fn psql(&self, connection: &str, statement: &str) -> Result<String> {
        let psql = ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", connection, "-c", statement];
        let mut command = vec!["env", "PGCONNECT_TIMEOUT=3", "timeout", "45"];
        command.extend(psql);
        self.run(&command).await
    }

    /// Waits until a statement over the network gives this.
    pub async fn psql_gives(&self, connection: &str, statement: &str, expected: &str) -> Result {
        eventually(SOON, &format!("{expected:?} from {statement:?}"), || async {
            match self.psql(connection, statement).await {
                Ok(answer) if answer == expected => Ok(()),
                Ok(answer) => Err(format!("{answer:?}")),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        Ok(())
    }

    /// Puts a file into its /tmp and returns the path.
    pub async fn file(&self, name: &str, content: &str) -> Result<String> {
        let path = format!("/tmp/{name}");
        self.run(&["bash", "-c", "umask 077; printf %s \"$2\" > \"$1\"", "file", &path, content]).await?;
        Ok(path)
    }

    /// Begins to insert rows, one transaction and one connection each, and to note which were acknowledged.
    pub async fn write(&self, connection: &str) -> Result<Writer> {
        self.psql(connection, "create table acknowledged (n bigint primary key)").await?;
        self.run(&[
            "bash",
            "-c",
            "setsid bash -c \"$1\" writer \"$2\" >/dev/null 2>&1 </dev/null &",
            "start",
            WRITE,
            connection,
        ])
        .await?;
        let writer = Writer { client: self.clone(), connection: connection.to_owned() };
        writer.writes_on().await?;
        Ok(writer)
    }
}

/// Each line: a number, and when its commit was acknowledged.
const WRITE: &str = r#"
    export PGCONNECT_TIMEOUT=2
    n=0
    while [ ! -e /tmp/stop ]; do
        n=$((n + 1))
        if timeout 20 psql -XAtq -d "$1" -c "insert into acknowledged values ($n)" 2>/tmp/error; then
            echo "$n $EPOCHREALTIME" >>/tmp/acknowledged
        else
            sleep 0.05
        fi
    done
    touch /tmp/stopped"#;

/// A client that writes all the time.
pub struct Writer {
    client: ClientPod,
    connection: String,
}

impl Writer {
    async fn acknowledged(&self) -> Result<Vec<(u64, f64)>> {
        let text = self.client.run(&["bash", "-c", "cat /tmp/acknowledged 2>/dev/null || true"]).await?;
        let parse = |line: &str| {
            let (number, time) = line.split_once(' ')?;
            Some((number.parse().ok()?, time.parse().ok()?))
        };
        text.lines().map(|line| parse(line).ok_or_else(|| format!("a line {line:?}").into())).collect()
    }

    /// Waits until a row is acknowledged that was not yet when this was called.
    pub async fn writes_on(&self) -> Result {
        let before = self.acknowledged().await?.len();
        eventually(SOON, "the writer to have a row acknowledged", || async {
            match self.acknowledged().await {
                Ok(rows) if rows.len() > before + 1 => Ok(()),
                Ok(_) => Err(self.client.run(&["cat", "/tmp/error"]).await.unwrap_or_else(|error| error.to_string())),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        Ok(())
    }

    /// Ends it, and compares: every row that was acknowledged must be there. Returns how many, and the longest time
    /// between two of them.
    pub async fn end(self) -> Result<(usize, Duration)> {
        self.client.run(&["touch", "/tmp/stop"]).await?;
        eventually(SOON, "the writer to end", || async {
            self.client.run(&["ls", "/tmp/stopped"]).await.map_err(|error| error.to_string())
        })
        .await?;
        let acknowledged = self.acknowledged().await?;
        let rows = self.client.psql(&self.connection, "select n from acknowledged").await?;
        let rows: std::collections::HashSet<u64> = rows.lines().map(str::parse).collect::<Result<_, _>>()?;
        let lost: Vec<u64> = acknowledged.iter().map(|(n, _)| *n).filter(|n| !rows.contains(n)).collect();
        if !lost.is_empty() {
            return Err(format!("{} acknowledged rows are lost: {lost:?}", lost.len()).into());
        }
        let gaps = acknowledged.iter().zip(acknowledged.iter().skip(1)).map(|((_, before), (_, after))| after - before);
        let longest = gaps.fold(0.0_f64, f64::max);
        Ok((acknowledged.len(), Duration::from_secs_f64(longest)))
    }
}
