//! Every block of commands parses, and what the commands name exists. Nothing is run: see docs/development.md.

use std::io::Write as _;
use std::process::{Command, Stdio};

use clap::CommandFactory as _;
use clap::error::ErrorKind;
use hello_operator::config::Cli;
use serde_json::{Map, Value};

use crate::markdown::Page;
use crate::names::{Schema, file};
use crate::{pages, read, root, shell};

/// Flags of other programs that the text names alone.
const FOREIGN: [&str; 4] = ["--force", "--force-conflicts", "--server-side", "--restore-target-wal"];

/// `<such a thing>` is to be filled in by the reader; here by a word.
fn filled(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let (before, after) = rest.split_at(at);
        out += before;
        let hole = after[1..].find('>').map(|end| &after[1..=end]);
        match hole.filter(|hole| hole.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-'))) {
            Some(hole) => {
                out += "thing";
                rest = &after[hole.len() + 2..];
            }
            None => {
                out.push('<');
                rest = &after[1..];
            }
        }
    }
    out + rest
}

#[test]
fn blocks_parse() {
    for (path, text) in pages() {
        for (language, code) in Page::of(&text).blocks {
            if !["sh", "bash", "shell"].contains(&language.as_str()) {
                continue;
            }
            let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            bash.stdin.take().unwrap().write_all(filled(&code).as_bytes()).unwrap();
            let output = bash.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{}: {said}\n{code}", path.display());
        }
    }
}

#[test]
fn objects_have_fields_that_exist() {
    let (operator, backup) = (Schema::of_resource("helloop"), Schema::of_resource("hellobk"));
    let mut seen = 0;
    for (path, text) in pages() {
        for (_, code) in Page::of(&text).blocks.iter().filter(|(language, _)| language == "yaml") {
            let mut object: Value =
                serde_saphyr::from_str(&filled(code)).unwrap_or_else(|error| panic!("{code}: {error}"));
            // A piece of one begins with its spec.
            let kind = object["kind"].as_str().unwrap_or(if object["spec"].is_object() { "HelloOperator" } else { "" });
            let schema = match kind {
                "HelloOperator" => &operator,
                "HelloBackup" => &backup,
                _ => continue,
            };
            object = Value::Object(Map::from_iter([("spec".to_owned(), object["spec"].take())]));
            let unknown: Vec<String> = if object["spec"].is_null() { Vec::new() } else { schema.unknown(&object) };
            assert!(unknown.is_empty(), "{}: no such fields: {unknown:?}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 4, "hardly anything was looked at: {seen}");
}

#[test]
fn what_commands_name_exists() {
    let sources = Sources::read();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in pages() {
        let page = Page::of(&text);
        let blocks = page.blocks.iter().filter(|(language, _)| language == "sh").map(|(_, code)| (code, true));
        for (text, whole) in blocks.chain(page.spans.iter().map(|span| (span, false))) {
            for words in shell::commands(&filled(text)) {
                seen += 1;
                if let Err(what) = sources.check(&words, whole) {
                    wrong.push(format!("{}: {}: {what}", path.display(), words.join(" ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen > 500, "hardly anything was looked at: {seen}");
}

/// What a command may name.
struct Sources {
    makefile: String,
    names: String,
    tests: String,
    operator: Schema,
    backup: Schema,
    chart: Schema,
}

impl Sources {
    fn read() -> Self {
        let mut tests = String::new();
        collect(&root().join("tests"), &mut tests);
        Self {
            makefile: read(&root().join("Makefile")),
            names: read(&root().join("src/api/names.rs")),
            tests,
            operator: Schema::of_resource("helloop"),
            backup: Schema::of_resource("hellobk"),
            chart: Schema::of_chart(),
        }
    }

    /// A command of a block is `whole`; one in a line may leave out arguments.
    fn check(&self, words: &[String], whole: bool) -> Result<(), String> {
        for word in words {
            if file(word.trim_end_matches('/')) == Some(false) {
                return Err(format!("no file {word}"));
            }
            if let Some((_, name)) = word.split_once("terry.com/").filter(|(before, _)| before.is_empty()) {
                let name = name.split(['=', ' ']).next().unwrap_or_default();
                // An instance's number may follow; a hyphen at the end removes it.
                let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
                if name != "v" && !self.names.contains(&format!("\"terry.com/{name}\"")) {
                    return Err(format!("no label or annotation {name}"));
                }
            }
        }
        let text: Vec<&str> = words.iter().map(String::as_str).collect();
        match text.as_slice() {
            ["make", rest @ ..] => rest.iter().try_for_each(|word| self.make(word)),
            ["cargo", "test", rest @ ..] => {
                rest.iter().skip_while(|word| **word != "--test").nth(1).map_or(Ok(()), |name| {
                    let there = ["", "/main"].iter().any(|end| root().join(format!("tests/{name}{end}.rs")).exists());
                    there.then_some(()).ok_or(format!("no test {name}"))
                })
            }
            ["hello-operator", rest @ ..] => program(rest, whole),
            ["kubectl", "hello", rest @ ..] => program(&[&["ctl"], rest].concat(), whole),
            ["kubectl", rest @ ..] => self.kubectl(rest),
            ["helm", rest @ ..] | rest @ ["--set", _] => self.helm(rest),
            [flag] if flag.starts_with("--") && !whole => {
                let name = flag.split('=').next().unwrap_or_default();
                let known = FOREIGN.contains(&name) || has_flag(&Cli::command(), name);
                known.then_some(()).ok_or(format!("no flag {name}"))
            }
            [name] if !whole => self.name(name),
            _ => Ok(()),
        }
    }

    fn make(&self, word: &str) -> Result<(), String> {
        let known = match word.split_once('=') {
            Some((name, _)) => {
                self.makefile.contains(&format!("$({name})"))
                    || self.makefile.contains(&format!("{name} ?="))
                    || self.tests.contains(&format!("\"{name}\""))
            }
            None => self.makefile.lines().any(|line| {
                line.split_once(": ").is_some_and(|(targets, rest)| {
                    rest.contains("## ") && targets.split(' ').any(|target| target == word)
                })
            }),
        };
        known.then_some(()).ok_or(format!("the Makefile has no {word}"))
    }

    fn helm(&self, words: &[&str]) -> Result<(), String> {
        for pair in words.windows(2).filter(|pair| ["--set", "--set-string"].contains(&pair[0])) {
            let name = pair[1].split('=').next().unwrap_or_default();
            if !self.chart.has(name) {
                return Err(format!("the chart has no value {name}"));
            }
        }
        Ok(())
    }

    /// The fields that are patched or printed, of our two resources.
    fn kubectl(&self, words: &[&str]) -> Result<(), String> {
        let Some(resource) =
            words.iter().map(|word| word.split('/').next().unwrap()).find(|word| ["helloop", "hellobk"].contains(word))
        else {
            return Ok(());
        };
        let schema = if resource == "hellobk" { &self.backup } else { &self.operator };
        for pair in words.windows(2).filter(|pair| ["-p", "--patch"].contains(&pair[0])) {
            let patch: Value = serde_json::from_str(pair[1]).map_err(|error| format!("{}: {error}", pair[1]))?;
            if let Some(path) = schema.unknown(&patch).first() {
                return Err(format!("no field {path}"));
            }
        }
        for word in words.iter().filter(|word| word.contains("jsonpath=")) {
            for path in word
                .match_indices("{.")
                .chain(word.match_indices("range ."))
                .map(|(at, found)| &word[at + found.len()..])
            {
                let end = path.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(path.len());
                let path = &path[..end];
                if ["spec", "status"].contains(&path.split('.').next().unwrap()) && !schema.has(path) {
                    return Err(format!("no field {path}"));
                }
            }
        }
        Ok(())
    }

    /// A name with dots that begins like a field of ours, or like a value of the chart, is one.
    fn name(&self, name: &str) -> Result<(), String> {
        let name = name.split(':').next().unwrap_or_default();
        let Some((first, rest)) = name.split_once('.') else { return Ok(()) };
        if rest.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '[' | ']')) {
            return Ok(());
        }
        // Files, such as values.yaml, and the fields of a Kubernetes object.
        if ["json", "yaml", "rs", "md", "conf", "pem", "metadata"].iter().any(|end| rest.ends_with(end)) {
            return Ok(());
        }
        let ours =
            self.operator.holds(first) || self.operator.holds(&format!("spec.{first}")) || self.chart.holds(first);
        let there = self.operator.has(name)
            || self.operator.has(&format!("spec.{name}"))
            || self.operator.has(&format!("spec.backup.{name}"))
            || self.backup.has(name)
            || self.chart.has(name);
        (there || !ours).then_some(()).ok_or(format!("neither a field nor a value {name}"))
    }
}

/// Whether our own program takes these words.
fn program(words: &[&str], whole: bool) -> Result<(), String> {
    let line = [&["hello-operator"], words].concat();
    match Cli::command().try_get_matches_from(line) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(()),
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                if !whole =>
            {
                Ok(())
            }
            _ => Err(error.to_string()),
        },
    }
}

fn has_flag(command: &clap::Command, flag: &str) -> bool {
    let name = flag.trim_start_matches('-');
    command.get_arguments().any(|argument| argument.get_long() == Some(name))
        || command.get_subcommands().any(|below| has_flag(below, flag))
}

fn collect(folder: &std::path::Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &read(&path);
        }
    }
}

#[test]
fn mistakes_are_found() {
    let sources = Sources::read();
    for line in [
        "make demos",
        "make sim SEEDZ=1",
        "cargo test --test charts",
        "hello-operator run --verbos",
        "kubectl patch helloop x -p '{\"spec\": {\"primry\": null}}'",
        "kubectl get helloop x -o jsonpath='{.status.primary.name}'",
        "kubectl annotate helloop x terry.com/accept-dataloss=1",
        "kubectl apply -f examples/my-hello.yaml",
        "helm install x charts/hello-operator --set image.name=x",
        "--set 'watchNamespace={shop}'",
        "storage.sizes",
        "--verbos",
    ] {
        let words = shell::commands(line);
        assert!(sources.check(&words[0], false).is_err(), "{line}");
    }
}
