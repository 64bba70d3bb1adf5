//! The little of Markdown that these tests have to see: blocks of code, code in a line, headings, links.

/// What a page consists of, as far as it is looked at.
#[derive(Default)]
pub struct Page {
    /// Blocks of code: their language and their text.
    pub blocks: Vec<(String, String)>,
    /// Code in a line.
    pub spans: Vec<String>,
    /// Anchors of the headings, as GitHub makes them.
    pub anchors: Vec<String>,
    /// Targets of links.
    pub links: Vec<String>,
}

impl Page {
    pub fn of(text: &str) -> Self {
        let mut page = Self::default();
        let mut block: Option<(String, String)> = None;
        let mut prose = String::new();
        for line in text.lines() {
            match (line.trim_start().strip_prefix("```"), &mut block) {
                (Some(_), Some(_)) => page.blocks.extend(block.take()),
                (Some(language), None) => block = Some((language.trim().to_owned(), String::new())),
                (None, Some((_, code))) => *code += &format!("{line}\n"),
                (None, None) => {
                    if let Some(heading) =
                        line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
                    {
                        page.anchors.push(anchor(heading));
                    }
                    prose += &format!("{line}\n");
                }
            }
        }
        assert!(block.is_none(), "a block of code has no end");
        for (place, part) in prose.split('`').enumerate() {
            if place % 2 == 1 {
                page.spans.push(part.replace("\\|", "|").split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
        let without_code = prose.split('`').step_by(2).collect::<Vec<_>>().join("code");
        for rest in without_code.split("](").skip(1) {
            page.links.push(rest.split(')').next().unwrap_or_default().to_owned());
        }
        page
    }
}

fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .collect::<String>();
    kept.trim().replace(' ', "-")
}

#[test]
fn a_page_is_taken_apart() {
    let page = Page::of("# A `b`: c\nSee [d](e.md#f) and `g\n h`.\n```sh\nls `pwd`\n```\n");
    assert_eq!(page.anchors, ["a-b-c"]);
    assert_eq!(page.links, ["e.md#f"]);
    assert_eq!(page.spans, ["b", "g h"]);
    assert_eq!(page.blocks, [("sh".to_owned(), "ls `pwd`\n".to_owned())]);
}
