//! The standard `OTEL_` variables that say where traces go. What is not here, such as the sampler and the size of the queue,
//! the SDK reads itself.

use std::fmt;

use http::{HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use crate::api::config::{Collector, TraceProtocol};

/// What a batch may take where nothing is said.
const TIMEOUT_MILLIS: u64 = 10_000;

/// A collector, and what it asks of those who send.
#[derive(Clone, PartialEq, Eq)]
pub struct Destination {
    /// The collector.
    pub collector: Collector,
    /// Headers of each request; a token may be among them.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Destination {
    /// What agents are told: all of it, but not where a header is asked for, which may be a token. That one stays here.
    pub fn for_agents(&self) -> Option<&Collector> {
        self.headers.is_empty().then_some(&self.collector)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        formatter.debug_struct("Destination").field("collector", &self.collector).field("headers", &names).finish()
    }
}

/// Where the environment sends traces; None: nowhere.
pub(super) fn destination(get: impl Fn(&str) -> Option<String>) -> Result<Option<Destination>, String> {
    let off = get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || get("OTEL_TRACES_EXPORTER").is_some_and(|value| value.trim() == "none");
    // What is said of traces goes before what is said of everything.
    let said = |what: &str| {
        let own = format!("OTEL_EXPORTER_OTLP_TRACES_{what}");
        let general = format!("OTEL_EXPORTER_OTLP_{what}");
        let found = get(&own).map(|value| (own, value)).or_else(|| get(&general).map(|value| (general, value)));
        found.map(|(name, value)| (name, value.trim().to_owned()))
    };
    let Some((endpoint_name, endpoint)) = said("ENDPOINT").filter(|_| !off) else { return Ok(None) };
    let protocol = match said("PROTOCOL") {
        None => TraceProtocol::Grpc,
        Some((name, value)) => match value.as_str() {
            "grpc" => TraceProtocol::Grpc,
            "http/protobuf" => TraceProtocol::Http,
            _ => return Err(format!("{name} is {value:?}: grpc and http/protobuf are spoken")),
        },
    };
    let gzip = match said("COMPRESSION") {
        None => false,
        Some((name, value)) => match value.as_str() {
            "gzip" => true,
            "none" => false,
            _ => return Err(format!("{name} is {value:?}: gzip and none are known")),
        },
    };
    let timeout_millis = match said("TIMEOUT") {
        None => TIMEOUT_MILLIS,
        Some((name, value)) => {
            value.parse().map_err(|_| format!("{name} is {value:?}: it is a number of milliseconds"))?
        }
    };
    let authority = match said("CERTIFICATE") {
        None => None,
        Some((name, path)) => Some(
            std::fs::read_to_string(&path)
                .map_err(|error| format!("{name} names {path:?}, which cannot be read: {error}"))?,
        ),
    };
    let headers = said("HEADERS").map(|(name, value)| headers(&name, &value)).transpose()?.unwrap_or_default();
    let appended = endpoint_name == "OTEL_EXPORTER_OTLP_ENDPOINT" && protocol == TraceProtocol::Http;
    let endpoint = if appended { format!("{}/v1/traces", endpoint.trim_end_matches('/')) } else { endpoint };
    if !endpoint.parse::<Uri>().is_ok_and(|uri| usable(&uri)) {
        // Not the value: some write a password into it.
        return Err(format!("{endpoint_name} is no address such as http://collector:4317 or https://collector:4317"));
    }
    Ok(Some(Destination { collector: Collector { endpoint, protocol, gzip, timeout_millis, authority }, headers }))
}

fn usable(uri: &Uri) -> bool {
    let user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty()) && !user
}

/// `name=value,name=value`, where values are percent-encoded.
fn headers(variable: &str, text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    text.split(',')
        .filter(|pair| !pair.trim().is_empty())
        .map(|pair| {
            // Not the text: it may be a token.
            let broken = || format!("{variable} is not of the form name=value,name=value");
            let (name, value) = pair.split_once('=').ok_or_else(broken)?;
            let value = percent_decode_str(value.trim()).decode_utf8().map_err(|_| broken())?;
            let name = name.trim().parse::<HeaderName>().map_err(|_| broken())?;
            let mut value = HeaderValue::from_str(&value).map_err(|_| broken())?;
            value.set_sensitive(true);
            Ok((name, value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[(&str, &str)]) -> Result<Option<Destination>, String> {
        destination(|name| values.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    fn collector(values: &[(&str, &str)]) -> Collector {
        read(values).unwrap().unwrap().collector
    }

    const GENERAL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");

    #[test]
    fn traces_only_with_a_collector() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[GENERAL, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        assert_eq!(read(&[GENERAL, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        let plain = collector(&[GENERAL]);
        assert_eq!((plain.endpoint.as_str(), plain.protocol, plain.gzip), (GENERAL.1, TraceProtocol::Grpc, false));
        assert_eq!((plain.timeout_millis, plain.authority), (10_000, None));
    }

    #[test]
    fn what_is_said_of_traces_goes_before_what_is_said_of_everything() {
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces/here");
        let both = collector(&[
            GENERAL,
            own,
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "700"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ]);
        assert_eq!((both.endpoint.as_str(), both.protocol), ("https://traces/here", TraceProtocol::Http));
        assert_eq!((both.gzip, both.timeout_millis), (true, 700));
        // The general one is of all signals, so the path of this one is added.
        let http = collector(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ]);
        assert_eq!(http.endpoint, "http://c:4318/v1/traces");
    }

    #[test]
    fn headers_are_secret_and_stay_with_the_operator() {
        let found = read(&[GENERAL, ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret, x-tenant=a")])
            .unwrap()
            .unwrap();
        let values: Vec<_> =
            found.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(values, [("authorization", "Bearer s3cret"), ("x-tenant", "a")]);
        assert_eq!(found.for_agents(), None);
        assert!(!format!("{found:?}").contains("s3cret"));
        assert!(read(&[GENERAL]).unwrap().unwrap().for_agents().is_some());
    }

    #[test]
    fn what_cannot_be_followed_is_refused_and_no_secret_is_told() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.crt"),
        ] {
            let error = read(&[GENERAL, (name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
        for endpoint in ["collector:4317", "ftp://collector", "http://", "http://user:s3cret@collector:4317"] {
            let error = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]).unwrap_err();
            assert!(!error.contains("s3cret"), "{error}");
        }
        let error = read(&[GENERAL, ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret")]).unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
    }
}
