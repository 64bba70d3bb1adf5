//! The plan of one reconcile: a pure and total function of the [`World`]. A settled world gives an empty plan.

pub mod backup;
mod children;
mod lease;
mod members;
mod pods;
mod primary;
pub mod restart;
mod secrets;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_backup;
#[cfg(test)]
mod tests_backup_killed;
#[cfg(test)]
mod tests_rolls;
#[cfg(test)]
mod tests_verify;
pub mod verify;
mod volumes;

pub use members::Members;
pub use secrets::{SecretContent, SecretInputs};

use super::accept::{Accepted, Refused, accept};
use super::build::{Child, Scope};
use super::world::{ChildId, Failure, SecretKind, Trouble, World};
use crate::api::agent::{LeaveCommand, RestartCommand, SwitchoverCommand};
use crate::api::archive::{BackupCommand, CancelBackupCommand};
use crate::api::spec::State;

/// Reason of the event that tells of a loss that a human accepts: a warning, unlike the events of other steps.
pub const DATA_LOSS_ACCEPTED: &str = "DataLossAccepted";

/// Reason of the event that tells that a change by hand was undone.
pub const REPAIRED: &str = "ChildRepaired";

/// Reason of the notice that the Lease tells of data which no volume holds.
pub const DATA_MISSING: &str = "DataMissing";

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Create it. That it exists already is success if it is ours.
    Create(Child),
    /// Apply it over the one that is there.
    Apply(Child),
    /// Make a Secret, or make it anew. Keys, certificates and passwords are made where it is carried out.
    MakeSecret {
        /// Which one.
        kind: SecretKind,
        /// From what.
        inputs: SecretInputs,
        /// Whether the password that is there is replaced.
        fresh_password: bool,
    },
    /// Make the object the owner of a child that lasts (`Some`), or nobody (`None`).
    SetOwner {
        /// Which child.
        id: ChildId,
        /// Its uid.
        uid: String,
        /// The owner reference.
        owner: Option<serde_json::Value>,
    },
    /// Ask for a larger volume.
    Grow {
        /// Which volume.
        id: ChildId,
        /// The quantity.
        size: String,
    },
    /// Delete it, if it is still this one at this version.
    Delete {
        /// Which child.
        id: ChildId,
        /// Its uid.
        uid: String,
        /// Its version.
        version: String,
    },
    /// Set annotations and labels of a Pod.
    MarkPod {
        /// Which Pod.
        id: ChildId,
        /// Its uid.
        uid: String,
        /// Annotations.
        annotations: Vec<(&'static str, String)>,
        /// Labels.
        labels: Vec<(&'static str, String)>,
    },
    /// Tell an instance to restart PostgreSQL in place.
    Restart {
        /// Its ordinal.
        ordinal: u8,
        /// The command.
        command: RestartCommand,
    },
    /// Tell the primary to hand over to a replica. Done when it does not hold the Lease any more.
    Switchover {
        /// Its ordinal.
        primary: u8,
        /// The command.
        command: SwitchoverCommand,
    },
    /// Tell the primary that an instance leaves. Done only when no sync rule names it any more.
    Leave {
        /// Ordinal of the primary.
        primary: u8,
        /// The command.
        command: LeaveCommand,
    },
    /// Tell an instance to take a backup. Done when it is complete.
    Backup {
        /// Its ordinal.
        ordinal: u8,
        /// Name of the HelloBackup.
        name: String,
        /// The command.
        command: BackupCommand,
    },
    /// Tell an instance to end a backup, and to remove what it wrote.
    CancelBackup {
        /// Its ordinal.
        ordinal: u8,
        /// The command.
        command: CancelBackupCommand,
    },
}

/// One action and its reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Names the step among those of its plan.
    pub id: String,
    /// What to do.
    pub action: Action,
    /// Why, in words.
    pub reason: String,
    /// Reason of the event that tells of it; None where nobody wants to hear.
    pub event: Option<&'static str>,
    /// Steps of the same plan that must have succeeded. One that is not in the plan counts as done.
    pub needs: Vec<String>,
}

impl Step {
    /// What the step is about.
    pub fn child(&self, names: &crate::api::names::Names) -> Option<ChildId> {
        use super::world::Kind;
        match &self.action {
            Action::Create(child) | Action::Apply(child) => Some(child.id.clone()),
            Action::MakeSecret { kind, .. } => Some(ChildId::new(Kind::Secret, kind.name(names))),
            Action::SetOwner { id, .. }
            | Action::Grow { id, .. }
            | Action::Delete { id, .. }
            | Action::MarkPod { id, .. } => Some(id.clone()),
            Action::Restart { ordinal, .. } | Action::Switchover { primary: ordinal, .. } => {
                Some(ChildId::new(Kind::Pod, names.instance(*ordinal)))
            }
            Action::Leave { command, .. } => Some(ChildId::new(Kind::Pod, command.instance.clone())),
            Action::Backup { name, .. } => Some(ChildId::new(Kind::HelloBackup, name.clone())),
            Action::CancelBackup { ordinal, .. } => Some(ChildId::new(Kind::Pod, names.instance(*ordinal))),
        }
    }
}

impl Step {
    /// Whether it is about backups alone: the cluster is as it should be meanwhile.
    pub fn of_backups(&self, names: &crate::api::names::Names) -> bool {
        use super::world::Kind;
        match &self.action {
            Action::Backup { .. } | Action::CancelBackup { .. } => true,
            _ => self.child(names).is_some_and(|child| {
                child.kind == Kind::HelloBackup || child.kind == Kind::Pod && child.name == names.verify_pod()
            }),
        }
    }
}

/// What a cluster is doing, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
    /// Nothing.
    Nothing,
    /// Waits for agents to take over settings.
    Updating,
    /// Waits for instances to become ready.
    Starting,
    /// Makes what is missing.
    Creating,
    /// Adds or removes instances.
    Scaling,
    /// Replaces or restarts instances.
    Rolling,
    /// Stops all instances.
    Hibernating,
}

/// The plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// In order; steps that do not need each other may be carried out together.
    pub steps: Vec<Step>,
    /// What it is doing.
    pub doing: Doing,
    /// Why it does that, in a sentence.
    pub progress: String,
    /// What is held back or stands in the way.
    pub notices: Vec<Trouble>,
    /// The spec that was acted upon.
    pub accepted: Option<Accepted>,
    /// Why nothing was acted upon.
    pub refused: Option<Refused>,
    /// Who is to run.
    pub members: Members,
    /// Backups.
    pub backups: backup::Backups,
}

impl Plan {
    fn new() -> Self {
        Self {
            steps: Vec::new(),
            doing: Doing::Nothing,
            progress: String::new(),
            notices: Vec::new(),
            accepted: None,
            refused: None,
            members: Members::default(),
            backups: backup::Backups::default(),
        }
    }

    fn push(&mut self, id: impl Into<String>, action: Action, reason: impl Into<String>) -> &mut Step {
        self.steps.push(Step { id: id.into(), action, reason: reason.into(), event: None, needs: Vec::new() });
        // The step was pushed in the line above.
        let last = self.steps.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "the vector is not empty")]
        &mut self.steps[last]
    }

    fn notice(&mut self, reason: &str, sentence: impl Into<String>) {
        self.notices.push(Trouble { reason: reason.into(), sentence: sentence.into() });
    }

    fn does(&mut self, doing: Doing, progress: impl Into<String>) {
        if doing > self.doing {
            self.doing = doing;
            self.progress = progress.into();
        }
    }

    /// Whether nothing remains to be done or waited for.
    pub fn settled(&self) -> bool {
        self.steps.is_empty() && self.doing == Doing::Nothing
    }

    /// Failures that the plan itself sees, beside those of carrying it out.
    pub fn troubles<'a>(&'a self, failures: &'a [Failure]) -> impl Iterator<Item = &'a Trouble> {
        self.notices.iter().chain(failures.iter().map(|failure| &failure.trouble))
    }
}

/// Decides what is to be done.
pub fn plan(world: &World) -> Plan {
    let mut plan = Plan::new();
    let accepted = match accept(world) {
        Ok(accepted) => accepted,
        Err(refused) => {
            if let Refused::Unknown(why) = &refused {
                plan.does(Doing::Starting, format!("waits until it is known what is there: {why}"));
            }
            backup::idle(world, "nothing can be done for its HelloOperator: see its conditions", &mut plan);
            plan.refused = Some(refused);
            return plan;
        }
    };
    plan.notices.clone_from(&accepted.notices);
    let scope = Scope { cluster: &accepted.cluster, namespace: &world.object.namespace, uid: &world.object.uid };
    plan.members = Members::of(world, &accepted.cluster);
    if accepted.cluster.state == State::Paused {
        backup::idle(world, "state is Paused: it is taken once the cluster runs again", &mut plan);
        plan.accepted = Some(accepted);
        return plan;
    }
    let config = members::config(&accepted.config, &accepted.cluster, &plan.members);
    if children::plan(world, scope, &config, &mut plan) {
        secrets::plan(world, scope, &mut plan);
        lease::plan(world, scope, &config, &mut plan);
        volumes::plan(world, scope, &mut plan);
        pods::plan(world, scope, &mut plan);
        restart::plan(world, scope, &config, &mut plan);
        primary::plan(world, scope, &mut plan);
        backup::plan(world, scope, &mut plan);
        verify::plan(world, scope, &mut plan);
    } else {
        backup::idle(world, "too little is known of its cluster now", &mut plan);
    }
    plan.accepted = Some(accepted);
    plan
}

/// Whether a Pod is this object's.
fn children_ours(pod: &super::world::PodFacts, scope: Scope<'_>) -> bool {
    matches!(&pod.meta.owner, super::world::Owner::Object(uid) if uid == scope.uid)
}
