//! Passwords and certificates: what each is made from, and when it is made anew.

use serde_json::{Value, json};

use super::children::lasting;
use super::{Action, Doing, Plan};
use crate::api::names::{MAX_INSTANCES, SUPERUSER};
use crate::core::build::{Scope, hash};
use crate::core::world::{ChildId, Kind, Known, SecretFacts, SecretKind, World};

/// What a Secret is made from, besides randomness.
#[derive(Debug, Clone, PartialEq)]
pub struct SecretInputs {
    /// Its metadata.
    pub metadata: Value,
    /// What it holds.
    pub content: SecretContent,
    /// Hash of both, and of the version of the user's Secret that it stands for.
    pub hash: String,
    /// The user's Secret that it takes its content from.
    pub source: Option<String>,
    /// Value of the annotation that asked for new passwords.
    pub rotated_for: Option<String>,
}

/// What a Secret holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretContent {
    /// An authority.
    Authority {
        /// Its common name.
        name: String,
    },
    /// A login.
    Login {
        /// The role.
        username: String,
        /// Where the primary is reached.
        host: String,
        /// The database.
        database: String,
    },
    /// A certificate signed by the authority.
    Certificate {
        /// Its common name.
        name: String,
        /// Names that it is valid for, sorted.
        names: Vec<String>,
        /// Whether it is a client's as well.
        client: bool,
    },
}

/// What a Secret is made from.
pub fn inputs(world: &World, scope: Scope<'_>, kind: SecretKind) -> SecretInputs {
    let cluster = scope.cluster;
    let names = &cluster.names;
    let host = format!("{}.{}.svc", names.service_rw(), scope.namespace);
    let instances = || (1..=MAX_INSTANCES).map(|ordinal| names.instance(ordinal));
    let content = match kind {
        SecretKind::Ca => SecretContent::Authority { name: format!("{} of {}", names.cluster(), scope.namespace) },
        SecretKind::App => {
            SecretContent::Login { username: cluster.owner.clone(), host, database: cluster.database.clone() }
        }
        SecretKind::Superuser => SecretContent::Login { username: SUPERUSER.into(), host, database: "postgres".into() },
        SecretKind::Server => {
            let services =
                [names.service_rw(), names.service_ro(), names.service_r(), names.service_headless()].into_iter();
            let headless = names.service_headless();
            let members = instances().flat_map(|name| [name.clone(), format!("{name}.{headless}")]);
            let mut all: Vec<String> = services
                .chain(members)
                .flat_map(|name| {
                    let space = scope.namespace;
                    [
                        format!("{name}.{space}"),
                        format!("{name}.{space}.svc"),
                        format!("{name}.{space}.svc.cluster.local"),
                        name,
                    ]
                })
                .collect();
            all.sort();
            SecretContent::Certificate { name: names.service_rw(), names: all, client: false }
        }
        SecretKind::Replication => {
            let mut all: Vec<String> = instances().collect();
            all.sort();
            SecretContent::Certificate { name: crate::api::names::REPLICATION_USER.into(), names: all, client: true }
        }
    };
    let source = match kind {
        SecretKind::App => cluster.secrets.app.clone(),
        SecretKind::Superuser => cluster.secrets.superuser.clone(),
        SecretKind::Server => cluster.certificates.server.clone(),
        SecretKind::Ca | SecretKind::Replication => None,
    };
    let name = kind.name(names);
    // Certificates can be made anew at any time, if the authority stays; passwords and the authority cannot.
    let metadata = match kind {
        SecretKind::Server | SecretKind::Replication => scope.owned(&name),
        SecretKind::Ca | SecretKind::App | SecretKind::Superuser => scope.lasting(&name),
    };
    let version = world.user_secrets.get(&kind).and_then(Known::present).map(|secret| secret.version.clone());
    // The owner is kept in order by a step of its own.
    let hash = hash(&json!([format!("{content:?}"), source, version]));
    SecretInputs { metadata, content, hash, source, rotated_for: world.object.rotate_passwords.clone() }
}

/// Plans them.
pub fn plan(world: &World, scope: Scope<'_>, plan: &mut Plan) {
    let authority = ChildId::new(Kind::Secret, SecretKind::Ca.name(&scope.cluster.names)).to_string();
    for kind in SecretKind::ALL {
        let id = ChildId::new(Kind::Secret, kind.name(&scope.cluster.names));
        let inputs = inputs(world, scope, kind);
        if let Some(source) = &inputs.source
            && let Some(mistake) = source_mistake(world, kind)
        {
            plan.notice("UserSecret", format!("the Secret {source} that the spec names {mistake}"));
            continue;
        }
        let (reason, fresh_password) = match world.secrets.get(&kind) {
            None | Some(Known::Unknown(_)) => continue,
            Some(Known::Absent) => {
                plan.does(Doing::Creating, format!("{id} is made"));
                ("it is missing".to_owned(), false)
            }
            Some(Known::Present(facts)) => {
                let ours = match kind {
                    SecretKind::Server | SecretKind::Replication => {
                        super::children::may_touch(&facts.meta, &id.to_string(), scope, plan)
                    }
                    _ => lasting(&facts.meta, &id, scope, plan),
                };
                match ours.then(|| why_anew(world, facts, &inputs)).flatten() {
                    Some(why) => why,
                    None => continue,
                }
            }
        };
        let event = (reason != "it is missing").then_some("SecretRenewed");
        let action = Action::MakeSecret { kind, inputs, fresh_password };
        let step = plan.push(id.to_string(), action, reason);
        step.event = event;
        if matches!(kind, SecretKind::Server | SecretKind::Replication) {
            step.needs.push(authority.clone());
        }
    }
}

fn source_mistake(world: &World, kind: SecretKind) -> Option<String> {
    match world.user_secrets.get(&kind) {
        None | Some(Known::Absent) => Some("does not exist: create it".into()),
        Some(Known::Unknown(why)) => Some(format!("cannot be read: {why}")),
        Some(Known::Present(secret)) => secret.wrong.clone(),
    }
}

/// Why a Secret has to be made anew, and whether with a new password.
fn why_anew(world: &World, facts: &SecretFacts, inputs: &SecretInputs) -> Option<(String, bool)> {
    let login = matches!(inputs.content, SecretContent::Login { .. });
    if login && inputs.source.is_none() && inputs.rotated_for.is_some() && facts.rotated_for != inputs.rotated_for {
        return Some(("the annotation terry.com/rotate-passwords asks for a new password".into(), true));
    }
    if let Some(wrong) = &facts.wrong {
        return Some((wrong.clone(), false));
    }
    if facts.meta.hash.as_deref() != Some(inputs.hash.as_str()) {
        let why = match &inputs.source {
            Some(source) => format!("the Secret {source} or the spec changed"),
            None => "the spec changed".into(),
        };
        return Some((why, false));
    }
    let certificate = facts.certificate.as_ref()?;
    if let SecretContent::Certificate { names, .. } = &inputs.content
        && inputs.source.is_none()
    {
        if !certificate.signed_by_ca {
            return Some(("the certificate authority is another now".into(), false));
        }
        if certificate.names != *names {
            return Some(("its certificate is for other names".into(), false));
        }
    }
    let due = certificate.renew_at();
    if inputs.source.is_none() && world.now >= due {
        return Some((format!("its certificate ends at {}", certificate.until), false));
    }
    None
}

/// Hash of the Secrets that instances mount; None while not all of them are known.
pub fn mounted_hash(world: &World) -> Option<String> {
    let mut parts = Vec::new();
    for kind in SecretKind::ALL.into_iter().filter(|kind| kind.mounted()) {
        let facts = world.secrets.get(&kind).and_then(Known::present)?;
        parts.push(json!([facts.meta.uid, facts.meta.version]));
    }
    Some(hash(&Value::Array(parts)))
}
