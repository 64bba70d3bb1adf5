//! How a trace goes from the operator to an agent: the header `traceparent` of the W3C's Trace Context.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};

/// The header's name.
pub const TRACEPARENT: &str = "traceparent";

/// What the header says of the span that is under way here; None where there is none.
pub fn traceparent() -> Option<String> {
    Context::map_current(|current| {
        let span = current.span();
        let span = span.span_context();
        span.is_valid().then(|| format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8()))
    })
}

/// The span that the header names. Later versions may have more after these four.
pub(super) fn parse(header: &str) -> Option<SpanContext> {
    let mut parts = header.trim().splitn(5, '-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let further = parts.next().is_some();
    let hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let right = hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    if !right || version == "ff" || version == "00" && further {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::NONE)).filter(SpanContext::is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_goes_there_and_back() {
        let found = parse(HEADER).unwrap();
        assert!(found.is_remote() && found.is_sampled());
        let _guard = Context::new().with_remote_span_context(found).attach();
        assert_eq!(traceparent().as_deref(), Some(HEADER));
    }

    #[test]
    fn what_is_no_context_is_none() {
        assert_eq!(traceparent(), None);
        for header in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-é1",
        ] {
            assert_eq!(parse(header), None, "{header}");
        }
        assert!(
            parse("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more")
                .is_some_and(|found| !found.is_sampled())
        );
    }
}
