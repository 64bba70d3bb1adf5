//! Words for people.

use std::error::Error;

/// An error with its causes, each once: many say their cause themselves.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{said}")]
    struct Link {
        said: &'static str,
        source: Option<Box<Link>>,
    }

    #[test]
    fn a_cause_is_told_once() {
        let link = |said, source: Option<Link>| Link { said, source: source.map(Box::new) };
        let chain = link("no answer: refused", Some(link("refused", Some(link("port 5432", None)))));
        assert_eq!(with_causes(&chain), "no answer: refused: port 5432");
    }
}
