//! Imports run one way, and the layers that decide do no I/O. Read from the sources, so that a wrong arrow fails here
//! before anybody gets used to it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Each part of the house, and what it may name of the others. `main` and `lib` may name all.
const ARROWS: [(&str, &[&str]); 12] = [
    ("api", &[]),
    ("engine", &["api"]),
    ("core", &["api", "engine"]),
    ("leader", &[]),
    ("calls", &["api"]),
    ("https", &[]),
    ("config", &["api", "backup"]),
    ("telemetry", &["api", "config", "https"]),
    ("backup", &["api"]),
    ("operator", &["api", "calls", "engine", "core", "config", "leader", "telemetry"]),
    ("agent", &["api", "engine", "core", "backup", "config", "https", "telemetry"]),
    // A user's own tool: it shows what is published, and decides nothing that the operator decides.
    ("ctl", &["api", "calls", "config"]),
];

/// Where everything is decided and nothing done.
const PURE: [&str; 5] = ["api", "engine", "core", "leader/state.rs", "ctl/view"];

/// What the pure layers may name of other crates; whatever is not here is a client, a runtime, or needs a thought first.
const PURE_MAY: [&str; 20] = [
    "alloc",
    "base64",
    "core",
    "cronexpr",
    "jiff",
    "k8s_openapi",
    "kube::CustomResource",
    "kube::CustomResourceExt",
    "kube::KubeSchema",
    "kube::Resource",
    "kube::ResourceExt",
    "kube::api::ObjectMeta",
    "kube::core",
    "schemars",
    "percent_encoding",
    "serde",
    "serde_json",
    "sha2",
    "std",
    "thiserror",
];

/// What of these they may not: clocks, randomness, the environment, threads, files, sockets.
const PURE_MAY_NOT: [&str; 29] = [
    "jiff::Timestamp::now",
    "jiff::Zoned::now",
    "jiff::tz::TimeZone::get",
    "jiff::tz::db",
    "jiff::tz::TimeZone::system",
    "jiff::tz::TimeZone::try_system",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::collections::hash_map",
    "std::collections::hash_set",
    "std::env",
    "std::fs",
    "std::hash::RandomState",
    "std::io::stdin",
    "std::io::stdout",
    "std::io::stderr",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
    "std::os",
    "std::path::absolute",
    "std::print",
    "std::println",
    "std::process",
    "std::sync::mpsc",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    file: String,
    path: String,
    why: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src/{}: `{}`: {}", self.file, self.path, self.why)
    }
}

fn main_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every source file that is not only there for tests, by its path below src.
fn sources() -> BTreeMap<String, String> {
    fn walk(dir: &Path, root: &Path, files: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, root, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let root = main_dir().join("src");
    let mut files = BTreeMap::new();
    walk(&root, &root, &mut files);
    let tests: Vec<String> = files.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    files.retain(|name, _| {
        !tests.iter().any(|test| name == &format!("{test}.rs") || name.starts_with(&format!("{test}/")))
    });
    files
}

/// The modules below src that a file declares for tests only.
fn test_modules(file: &str, text: &str) -> Vec<String> {
    let module = module_of(file).join("/");
    let items = syn::parse_file(text).unwrap().items;
    items
        .iter()
        .filter_map(|item| match item {
            syn::Item::Mod(inner) if inner.content.is_none() && for_tests(&inner.attrs) => {
                Some(format!("{module}/{}", inner.ident).trim_start_matches('/').to_owned())
            }
            _ => None,
        })
        .collect()
}

fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// The module of a file: `core/election/mod.rs` is `core::election`.
fn module_of(file: &str) -> Vec<String> {
    let mut module: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// Collects every path that a file names, absolute: `crate::x::y` or `external::y`.
struct Paths {
    module: Vec<String>,
    imports: BTreeMap<String, Vec<String>>,
    found: BTreeSet<Vec<String>>,
    crates: BTreeSet<String>,
}

impl Paths {
    fn of(file: &str, text: &str, crates: &BTreeSet<String>) -> BTreeSet<Vec<String>> {
        let syntax = syn::parse_file(text).unwrap_or_else(|error| panic!("src/{file}: {error}"));
        let module = module_of(file);
        let mut paths = Self { module, imports: BTreeMap::new(), found: BTreeSet::new(), crates: crates.clone() };
        // Imports first: a name may be used above the `use` that brings it.
        Imports(&mut paths).visit_file(&syntax);
        paths.visit_file(&syntax);
        paths.found
    }

    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" | "hello_operator" => Some([vec!["crate".to_owned()], rest.to_vec()].concat()),
            "self" | "super" => {
                let mut base = self.module.clone();
                let mut rest = path;
                while let Some((first, after)) = rest.split_first() {
                    match first.as_str() {
                        "self" => {}
                        "super" => drop(base.pop()),
                        _ => break,
                    }
                    rest = after;
                }
                Some([vec!["crate".to_owned()], base, rest.to_vec()].concat())
            }
            name => match self.imports.get(name) {
                Some(import) => Some([import.clone(), rest.to_vec()].concat()),
                None if self.crates.contains(name) => Some(path.to_vec()),
                None => None,
            },
        }
    }

    fn named(&mut self, path: &[String]) {
        if let Some(absolute) = self.absolute(path) {
            self.found.insert(absolute);
        }
    }

    /// Macros hide their paths from the parser, not from a look at their tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.named(&std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colons += 1,
                other => {
                    self.named(&std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.named(&path);
    }
}

/// First pass: what is imported under which name.
struct Imports<'a>(&'a mut Paths);

impl Visit<'_> for Imports<'_> {
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        if !for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        if !for_tests(&item.attrs) {
            for (path, name) in leaves(&item.tree, &[]) {
                if let Some(absolute) = self.0.absolute(&path) {
                    self.0.found.insert(absolute.clone());
                    self.0.imports.insert(name, absolute);
                }
            }
        }
    }
}

fn leaves(tree: &syn::UseTree, before: &[String]) -> Vec<(Vec<String>, String)> {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    let plain = |path: Vec<String>| {
        let path = if path.last().is_some_and(|last| last == "self") { before.to_vec() } else { path };
        let name = path.last().cloned().unwrap_or_default();
        (path, name)
    };
    match tree {
        syn::UseTree::Path(path) => leaves(&path.tree, &with(&path.ident)),
        syn::UseTree::Name(name) => vec![plain(with(&name.ident))],
        syn::UseTree::Rename(rename) => vec![(plain(with(&rename.ident)).0, rename.rename.to_string())],
        syn::UseTree::Glob(_) => vec![([before, &["*".to_owned()]].concat(), "*".to_owned())],
        syn::UseTree::Group(group) => group.items.iter().flat_map(|item| leaves(item, before)).collect(),
    }
}

impl Visit<'_> for Paths {
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        if !for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
    fn visit_item_use(&mut self, _: &syn::ItemUse) {}
    fn visit_path(&mut self, path: &syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.named(&names);
        visit::visit_path(self, path);
    }
    fn visit_macro(&mut self, call: &syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }
    fn visit_attribute(&mut self, attribute: &syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }
}

fn begins(path: &[String], prefix: &str) -> bool {
    let prefix: Vec<&str> = prefix.split("::").collect();
    path.len() >= prefix.len() && prefix.iter().zip(path).all(|(want, have)| want == have)
}

/// What is wrong with one file.
fn faults(file: &str, text: &str, crates: &BTreeSet<String>) -> Vec<Fault> {
    let part = module_of(file).first().cloned().unwrap_or_default();
    let mut faults = Vec::new();
    let mut fault = |path: &[String], why: String| {
        faults.push(Fault { file: file.to_owned(), path: path.join("::"), why });
    };
    let pure = PURE.iter().any(|pure| file.starts_with(&format!("{pure}/")) || file == *pure);
    let allowed = ARROWS.iter().find(|(name, _)| *name == part).map(|(_, allowed)| *allowed);
    if allowed.is_none() && !part.is_empty() {
        fault(&[], format!("`{part}` has no place in ARROWS: say there what it may name"));
    }
    for path in Paths::of(file, text, crates) {
        if path[0] == "crate" {
            let other = path.get(1).map_or("", String::as_str);
            let is_part = ARROWS.iter().any(|(name, _)| *name == other);
            if let Some(allowed) = allowed
                && is_part
                && other != part
                && !allowed.contains(&other)
            {
                fault(&path, format!("`{part}` may not name `{other}`"));
            }
        } else if pure {
            if !PURE_MAY.iter().any(|prefix| begins(&path, prefix)) {
                fault(&path, "not for a layer that only decides".into());
            }
            if let Some(prefix) = PURE_MAY_NOT.iter().find(|prefix| begins(&path, prefix)) {
                fault(&path, format!("`{prefix}` is a clock, randomness, the environment or I/O"));
            }
            // A glob over something forbidden in part.
            if path.last().is_some_and(|last| last == "*")
                && PURE_MAY_NOT.iter().any(|prefix| prefix.starts_with(&path[..path.len() - 1].join("::")))
            {
                fault(&path, "a glob brings in what only shells may use: name what is meant".into());
            }
        }
    }
    faults.sort();
    faults
}

/// The names under which other crates are in scope.
fn crates() -> BTreeSet<String> {
    let manifest = std::fs::read_to_string(main_dir().join("Cargo.toml")).unwrap();
    let mut names: BTreeSet<String> = ["std", "core", "alloc"].map(str::to_owned).into();
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && let Some((name, _)) = line.split_once('=') {
            names.insert(name.trim().replace('-', "_"));
        }
    }
    names
}

#[test]
fn imports_run_one_way_and_pure_layers_stay_pure() {
    let crates = crates();
    assert!(crates.contains("tokio") && crates.contains("k8s_openapi"), "read from Cargo.toml: {crates:?}");
    let sources = sources();
    assert!(sources.contains_key("core/mod.rs") && !sources.contains_key("leader/simulation.rs"));
    let faults: Vec<String> =
        sources.iter().flat_map(|(file, text)| faults(file, text, &crates)).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn exactly_one_k8s_openapi_is_locked() {
    let lock = std::fs::read_to_string(main_dir().join("Cargo.lock")).unwrap();
    let count = lock.lines().filter(|line| *line == "name = \"k8s-openapi\"").count();
    assert_eq!(count, 1, "two versions do not build together: cargo update -p k8s-openapi@0.29.0 --precise 0.28.0");
}

/// Why a snippet in that file is refused.
fn refused(file: &str, snippet: &str) -> Vec<String> {
    faults(file, snippet, &crates()).into_iter().map(|fault| fault.path).collect()
}

#[test]
fn wrong_arrows_are_found() {
    for (file, snippet, path) in [
        ("core/x.rs", "use crate::operator::Thing;", "crate::operator::Thing"),
        ("core/x.rs", "use crate::{api::Category, agent};", "crate::agent"),
        ("core/deep/x.rs", "use super::super::super::leader::Gate;", "crate::leader::Gate"),
        ("api/mod.rs", "fn f() { crate::core::cluster::accept(); }", "crate::core::cluster::accept"),
        ("leader/elector.rs", "type T = crate::api::Category;", "crate::api::Category"),
        ("agent/x.rs", "fn f() { println!(\"{}\", crate::leader::now()); }", "crate::leader::now"),
        ("telemetry/x.rs", "use crate as house; fn f() { house::operator::run(); }", "crate::operator::run"),
        ("engine/x.rs", "#[serde(with = \"x\", default = crate::core::x)] struct S;", "crate::core::x"),
        ("operator/x.rs", "use crate::backup::store::Store;", "crate::backup::store::Store"),
        ("backup/x.rs", "use crate::engine::postgres;", "crate::engine::postgres"),
        ("ctl/x.rs", "use crate::core::plan::plan;", "crate::core::plan::plan"),
        ("ctl/x.rs", "use crate::operator::show;", "crate::operator::show"),
        ("attic/x.rs", "", ""),
    ] {
        assert_eq!(refused(file, snippet), [path], "{file}: {snippet}");
    }
}

#[test]
fn impure_names_are_found() {
    for (snippet, path) in [
        ("use kube::Client;", "kube::Client"),
        ("use kube::{Resource, runtime::watcher};", "kube::runtime::watcher"),
        ("use tokio::sync::watch;", "tokio::sync::watch"),
        ("fn f() { let _ = std::time::Instant::now(); }", "std::time::Instant::now"),
        ("use std::time; fn f() { time::SystemTime::now(); }", "std::time::SystemTime::now"),
        ("use jiff::Timestamp; fn f() { Timestamp::now(); }", "jiff::Timestamp::now"),
        ("use jiff::Timestamp as T; fn f() { vec![T::now()]; }", "jiff::Timestamp::now"),
        ("fn f() -> u8 { rand::random() }", "rand::random"),
        ("fn f() { std::env::var(\"HOME\"); }", "std::env::var"),
        ("use std::net::{IpAddr, TcpStream};", "std::net::TcpStream"),
        ("mod inner { use std::fs::File; }", "std::fs::File"),
        ("use std::time::*;", "std::time::*"),
        ("fn f(_: reqwest_is_not_a_dependency::X, _: hyper::Error) {}", "hyper::Error"),
    ] {
        for file in ["api/x.rs", "engine/postgres/x.rs", "core/x.rs", "leader/state.rs", "ctl/view/x.rs"] {
            assert!(
                refused(file, snippet).contains(&path.to_owned()),
                "{file}: {snippet}: {:?}",
                refused(file, snippet)
            );
        }
        assert!(refused("operator/x.rs", snippet).is_empty(), "a shell may: {snippet}");
    }
}

#[test]
fn what_is_allowed_passes() {
    for (file, snippet) in [
        ("core/x.rs", "use std::time::Duration; use crate::api::Category; use jiff::Timestamp; fn f(_: Timestamp) {}"),
        ("core/x.rs", "#[cfg(test)] mod tests { use std::time::Instant; use super::*; }"),
        ("core/x.rs", "use kube::{CustomResourceExt, Resource}; use super::cluster::Cluster;"),
        ("api/x.rs", "fn f() -> u8 { core::cmp::max(1, 2) }"),
        ("api/x.rs", "use std::net::IpAddr; /// See [`crate::core::cluster`].\nstruct S;"),
        ("operator/x.rs", "use crate::leader::Gate; use crate::core::cluster;"),
        ("leader/elector.rs", "use super::state::Machine; use tokio::sync::watch;"),
        ("main.rs", "use hello_operator::operator; use hello_operator::agent;"),
    ] {
        assert!(refused(file, snippet).is_empty(), "{file}: {snippet}: {:?}", refused(file, snippet));
    }
}
