//! Logs, metrics, traces and the health endpoints.
//!
//! A program calls [`init`] once and [`Telemetry::shutdown`] before it ends. Between them it
//! logs with `tracing`; spans of this crate at level `INFO` become traces when the environment asks for them. A
//! [`health::Server`] serves `/metrics`, `/livez` and `/readyz`.

pub mod backups;
pub mod clusters;
pub mod health;
pub mod logs;
pub mod metrics;
pub mod secure;
pub mod traces;

use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::api::Category;
use crate::config::{LogArgs, TelemetryEnv};

/// Why telemetry could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Traces cannot be sent as it was asked.
    #[error("traces cannot be sent as the OTEL_ variables ask: {0}")]
    Exporter(String),
    /// Another subscriber is installed.
    #[error("logging was already begun: {0}")]
    Subscriber(#[from] tracing_subscriber::util::TryInitError),
    /// The address of the health endpoints cannot be had.
    #[error("cannot listen on {address} for /metrics, /livez and /readyz: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A metric is declared twice or its name is not valid.
    #[error("metric: {0}")]
    Metric(#[from] prometheus::Error),
}

impl Error {
    /// What kind of trouble it is.
    pub fn category(&self) -> Category {
        match self {
            Self::Exporter(_) => Category::Invalid,
            Self::Listen { .. } => Category::Io,
            Self::Subscriber(_) | Self::Metric(_) => Category::Internal,
        }
    }
}

/// Logging and tracing of this process.
#[must_use = "traces are flushed by shutdown()"]
pub struct Telemetry {
    service: &'static str,
    traces: Option<traces::Traces>,
}

/// Begins logging, and tracing when the environment asks for it. `service` names the program in traces, unless
/// `OTEL_SERVICE_NAME` does. Call it once.
///
/// An environment that cannot be followed costs the traces and a warning, not the program.
pub fn init(log: &LogArgs, env: &TelemetryEnv, service: &'static str) -> Result<Telemetry, Error> {
    let refused = env.refused.clone().map(Error::Exporter);
    let (traces, refused) = match env.traces.as_ref().map(|to| traces::Traces::start(to, service)).transpose() {
        Ok(traces) => (traces, refused),
        Err(error) => (None, Some(error)),
    };
    let layer = traces.as_ref().map(|traces| traces.layer(service));
    let lines = logs::layer(logs::format(log.log_format), std::io::stderr);
    tracing_subscriber::registry()
        .with(layer)
        .with(lines.with_filter(logs::filter(log.verbose, env.log_filter.as_deref())))
        .try_init()?;
    if let Some(error) = refused {
        tracing::warn!(%error, "there are no traces");
    }
    Ok(Telemetry { service, traces })
}

impl Telemetry {
    /// Adds the counter of spans to the metrics of the program, when there are traces.
    pub fn register(&self, registry: &prometheus::Registry) -> Result<(), Error> {
        match &self.traces {
            Some(traces) => Ok(traces.register(registry)?),
            None => Ok(()),
        }
    }

    /// For hand-overs, which become traces of their own when there are traces.
    pub fn hand_overs(&self) -> traces::HandOvers {
        self.traces.as_ref().map(|traces| traces.hand_overs(self.service)).unwrap_or_default()
    }

    /// Sends the spans that wait, for at most two seconds.
    pub async fn shutdown(self) {
        if let Some(traces) = self.traces {
            traces.shutdown().await;
        }
    }
}
