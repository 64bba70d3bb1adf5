//! Links of the pages lead somewhere, and every page can be reached from the README.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::markdown::Page;
use crate::{pages, root};

/// Without `..`, so that two names of one file are equal.
fn resolved(from: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in from.parent().unwrap().join(link).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{link} leads out of the tree"),
            other => path.push(other),
        }
    }
    path
}

#[test]
fn links_lead_somewhere() {
    let all: BTreeMap<PathBuf, Page> = pages().iter().map(|(path, text)| (path.clone(), Page::of(text))).collect();
    let mut wrong = Vec::new();
    for (path, page) in &all {
        for link in page.links.iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { resolved(path, file) };
            let heading =
                anchor.is_empty() || all.get(&target).is_some_and(|to| to.anchors.iter().any(|one| one == anchor));
            if !root().join(&target).exists() || !heading {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere: {wrong:#?}");
}

#[test]
fn the_readme_leads_to_every_page() {
    let all: BTreeMap<PathBuf, Page> = pages().iter().map(|(path, text)| (path.clone(), Page::of(text))).collect();
    let readme = &all[Path::new("README.md")];
    let named: BTreeSet<PathBuf> =
        readme.links.iter().map(|link| resolved(Path::new("README.md"), link.split('#').next().unwrap())).collect();
    let missing: Vec<&PathBuf> =
        all.keys().filter(|path| path.parent() == Some(Path::new("docs")) && !named.contains(*path)).collect();
    assert!(missing.is_empty(), "the README names no {missing:?}");
}
