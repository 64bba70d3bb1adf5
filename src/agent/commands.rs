//! What the operator may command. An agent refuses a term that is older than the one it knows.

use opentelemetry::trace::SpanContext;
use tokio::sync::oneshot;

use super::run::{Agent, show};
use crate::api::agent::{CommandAnswer, HandOverReason, LeaveCommand, RestartCommand, SwitchoverCommand};
use crate::api::archive::{BackupCommand, CancelBackupCommand};
use crate::core::election::planned::{Target, target};
use crate::telemetry::traces::agent::current;

/// A command with where to answer.
#[derive(Debug)]
pub enum Command {
    /// Restart PostgreSQL in place.
    Restart(RestartCommand, oneshot::Sender<Result<CommandAnswer, String>>),
    /// An instance is removed.
    Leave(LeaveCommand, oneshot::Sender<Result<CommandAnswer, String>>),
    /// Another instance shall be primary.
    Switchover(SwitchoverCommand, oneshot::Sender<Result<CommandAnswer, String>>),
    /// Take a base backup.
    Backup(BackupCommand, oneshot::Sender<Result<CommandAnswer, String>>),
    /// End one, and leave nothing of it.
    CancelBackup(CancelBackupCommand, oneshot::Sender<Result<CommandAnswer, String>>),
}

/// Another primary that is to be, because somebody asked for it or because the own volume is full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Switchover {
    pub(super) to: String,
    /// The command that asked for it.
    pub(super) id: Option<String>,
    pub(super) reason: HandOverReason,
    /// The span of the request.
    pub(super) asked_by: SpanContext,
}

impl Agent {
    pub(super) fn command(&mut self, command: Command) {
        // Whoever asked may be gone.
        let _ = match command {
            Command::Restart(command, answer) => answer.send(self.restart(command)),
            Command::Leave(command, answer) => answer.send(self.leave(&command)),
            Command::Switchover(command, answer) => answer.send(self.switch_over(command)),
            Command::Backup(command, answer) => answer.send(self.back_up(command)),
            Command::CancelBackup(command, answer) => answer.send(Ok(self.cancel_backup(&command))),
        };
    }

    fn restart(&mut self, command: RestartCommand) -> Result<CommandAnswer, String> {
        self.refuse_older(command.term)?;
        // What went down on the primary later may go down here too, and waits for another restart by the same command.
        if self.state.restarted_for.as_deref() == Some(command.id.as_str()) && !self.duties.restart_is_due() {
            return Ok(CommandAnswer { done: true, message: "PostgreSQL was restarted".into() });
        }
        if self.restart.as_deref() != Some(command.id.as_str()) {
            tracing::info!(id = %command.id, reason = %command.reason, "a restart of PostgreSQL was asked for");
            self.restart = Some(command.id);
        }
        Ok(CommandAnswer { done: false, message: "PostgreSQL restarts".into() })
    }

    fn leave(&mut self, command: &LeaveCommand) -> Result<CommandAnswer, String> {
        self.refuse_older(command.term)?;
        if self.tenure.is_none() {
            return Err("this instance does not hold the Lease of the primary".into());
        }
        if command.instance == self.me.instance {
            return Err("the primary itself cannot leave".into());
        }
        self.members.leave(&command.instance);
        let Some(register) = self.register() else { return Err("the Lease is not known".into()) };
        let done = self.members.left(&command.instance, register);
        let message = if done {
            format!("no sync rule names {}", command.instance)
        } else {
            format!("{} is still named by a sync rule: {}", command.instance, show(&register.rules))
        };
        Ok(CommandAnswer { done, message })
    }

    /// Somebody wants another primary. `core::election` hands over once that instance is ready.
    fn switch_over(&mut self, command: SwitchoverCommand) -> Result<CommandAnswer, String> {
        self.refuse_older(command.term)?;
        let under_way = CommandAnswer { done: false, message: "the hand-over is under way".into() };
        if self.tenure.is_none() {
            let done = self.register().is_some_and(|register| !register.released());
            return Ok(CommandAnswer { done, ..under_way });
        }
        if self.switchover.as_ref().is_some_and(|present| present.id.as_ref() == Some(&command.id)) {
            return Ok(under_way);
        }
        let me = &self.me.instance;
        let to = match target(command.to.as_deref(), me, &self.members.candidates()) {
            Target::Present => return Ok(CommandAnswer { done: true, message: format!("{me} is the primary") }),
            Target::To(to) => to,
            Target::Nobody(who) => {
                return Err(format!("{who} does not stream from {me} now, so it cannot take over"));
            }
        };
        tracing::info!(id = %command.id, to, reason = %command.reason, "a switchover was asked for");
        let (id, reason, asked_by) = (Some(command.id), HandOverReason::Switchover, current());
        self.switchover = Some(Switchover { to, id, reason, asked_by });
        Ok(under_way)
    }

    pub(super) fn refuse_older(&self, term: i64) -> Result<(), String> {
        let known = self.register().map_or(0, |register| register.term);
        if term < known { Err(format!("the command is of term {term}, and this is term {known}")) } else { Ok(()) }
    }
}
