//! Log lines, on stderr: text on a terminal, one JSON object a line elsewhere.

use std::io::IsTerminal;

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Json, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::LogFormat;

/// Levels before the user's own. The named libraries stay at `info` even under `RUST_LOG=trace`, because below it they
/// print what goes over the wire, passwords and tokens included; who wants that names the library. The lease library
/// says at each look of a standby, every two seconds, who holds the Lease: `leader` tells of changes.
const BASE: &str = "info,kube_leader_election=warn,opentelemetry=warn,h2=info,hyper=info,hyper_util=info,rustls=info,tokio_postgres=info,tonic=info,tower=info";

/// Which lines appear. `own` is what RUST_LOG says; it overrides target by target.
pub fn filter(verbose: bool, own: Option<&str>) -> EnvFilter {
    let mut directives = String::from(BASE);
    if verbose {
        directives.push_str(",hello_operator=debug");
    }
    if let Some(own) = own {
        directives.push(',');
        directives.push_str(own);
    }
    EnvFilter::builder().parse_lossy(directives)
}

/// The form of the lines: as asked, else what suits where stderr goes.
pub fn format(asked: Option<LogFormat>) -> LogFormat {
    asked.unwrap_or(if std::io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json })
}

/// The layer that writes the lines.
pub fn layer<S, W>(format: LogFormat, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        LogFormat::Text => layer.with_target(false).with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => {
            let json = Format::default().json().flatten_event(true).with_current_span(true).with_span_list(false);
            layer.fmt_fields(JsonFields::new()).event_format(WithTraceId(json)).boxed()
        }
    }
}

/// JSON lines that also name the trace, so that a log leads to its trace.
struct WithTraceId(Format<Json>);

impl<S, N> FormatEvent<S, N> for WithTraceId
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
    Format<Json>: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        // Entering a span makes its context the thread's current one; without traces there is none.
        let Some(trace_id) = Context::map_current(|current| {
            let span = current.span();
            let context = span.span_context();
            context.is_valid().then(|| context.trace_id())
        }) else {
            return self.0.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        match line.trim_end().strip_suffix('}') {
            Some(open) => writeln!(writer, "{open},\"trace_id\":\"{trace_id}\"}}"),
            None => writer.write_str(&line),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
        fn json(&self) -> Vec<serde_json::Value> {
            self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        }
    }

    fn logged(format: LogFormat, filter: EnvFilter, log: impl FnOnce()) -> Lines {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = layer(format, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer.with_filter(filter)), log);
        lines
    }

    #[test]
    fn json_lines_carry_fields_and_the_span_but_no_trace_without_one() {
        let lines = logged(LogFormat::Json, filter(false, None), || {
            let _span = tracing::info_span!("reconcile", cluster = "a").entered();
            tracing::info!(target: "hello_operator", answer = 42, "### A handler is called with body: {{\"a\":\"b\"}}");
        });
        let line = &lines.json()[0];
        assert_eq!(line["message"], "### A handler is called with body: {\"a\":\"b\"}");
        assert_eq!(line["answer"], 42);
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["span"]["cluster"], "a");
        assert_eq!(line.get("trace_id"), None);
    }

    #[test]
    fn json_lines_in_a_traced_span_name_the_trace() {
        let provider = SdkTracerProvider::builder().build();
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::registry()
            .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("test")))
            .with(layer(LogFormat::Json, move || writer.clone()));
        let mut expected = String::new();
        tracing::subscriber::with_default(subscriber, || {
            let _span = tracing::info_span!("reconcile").entered();
            expected = Context::map_current(|current| current.span().span_context().trace_id().to_string());
            tracing::info!("inside");
        });
        assert_eq!(expected.len(), 32);
        assert_eq!(lines.json()[0]["trace_id"], expected);
    }

    #[test]
    fn text_lines_are_for_people() {
        let lines = logged(LogFormat::Text, filter(false, None), || {
            tracing::info!(target: "hello_operator::operator", "### A handler is called with body: {{}}");
        });
        assert!(lines.text().contains("INFO ### A handler is called with body: {}\n"), "{}", lines.text());
    }

    #[test]
    fn levels_follow_verbose_and_rust_log_but_the_wire_stays_silent() {
        let count = |verbose, own| {
            logged(LogFormat::Json, filter(verbose, own), || {
                tracing::debug!(target: "hello_operator::core", "ours");
                tracing::debug!(target: "kube_client", "theirs");
                tracing::debug!(target: "hyper::proto", "the wire");
            })
            .json()
            .len()
        };
        assert_eq!(count(false, None), 0);
        assert_eq!(count(true, None), 1);
        assert_eq!(count(true, Some("hello_operator=error")), 0);
        assert_eq!(count(false, Some("trace")), 2);
        assert_eq!(count(false, Some("trace,hyper=trace")), 3);
        assert_eq!(count(true, Some("not a directive!!")), 1);
    }

    #[test]
    fn the_form_is_as_asked() {
        assert_eq!(format(Some(LogFormat::Text)), LogFormat::Text);
        assert_eq!(format(Some(LogFormat::Json)), LogFormat::Json);
    }
}
