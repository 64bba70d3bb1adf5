//! `completion`: what a shell needs to complete these commands.

use clap::CommandFactory as _;
use clap_complete::{Shell as Kind, generate};

use super::PLUGIN;
use super::error::Error;
use super::session::answer;
use crate::config::ctl::{Plugin, Shell};

/// Prints it.
pub fn print(shell: Shell) -> Result<(), Error> {
    answer(&script(shell))
}

/// The script of a shell, for the program under its plugin's name.
pub fn script(shell: Shell) -> String {
    let kind = match shell {
        Shell::Bash => Kind::Bash,
        Shell::Zsh => Kind::Zsh,
        Shell::Fish => Kind::Fish,
        Shell::Kubectl => return for_kubectl(),
    };
    // Under `kubectl hello` the shell asks kubectl; this is for the program itself.
    let mut command = Plugin::command().bin_name(PLUGIN);
    let mut script = Vec::new();
    generate(kind, &mut command, PLUGIN, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// What kubectl calls as `kubectl_complete-hello`: it prints candidates, and at last `:4`, which is "no file names".
/// Verbs and flags stand in it; names of clusters come from kubectl.
fn for_kubectl() -> String {
    use std::fmt::Write as _;
    let command = Plugin::command();
    let mut verbs = String::new();
    let mut flags = String::new();
    for verb in command.get_subcommands() {
        let name = verb.get_name();
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(verbs, "{name}\t{}", about.replace('\'', ""));
        let all = verb.get_arguments().chain(command.get_arguments()).filter_map(clap::Arg::get_long);
        let all: Vec<String> = all.map(|flag| format!("--{flag}")).collect();
        let _ = writeln!(flags, "      {name}) printf '%s\\n' {} ;;", all.join(" "));
    }
    format!(
        r"#!/bin/sh
# Completion of `kubectl hello`: put this file into the PATH as kubectl_complete-hello and make it executable.
last=; for last; do :; done
verb=${{1:-}}
case $last in
  -*)
    case $verb in
{flags}    esac ;;
  *)
    if [ $# -le 1 ]; then printf '%s' '{verbs}'; else
      case $verb in completion) printf '%s\n' bash zsh fish kubectl ;;
        *) kubectl get helloopperators -o name 2>/dev/null | sed 's,.*/,,' ;; esac
    fi ;;
esac
echo :4
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_knows_every_verb() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Kubectl] {
            let script = script(shell);
            for verb in Plugin::command().get_subcommands() {
                assert!(script.contains(verb.get_name()), "{shell:?}: {}", verb.get_name());
            }
        }
    }

    #[test]
    fn kubectl_gets_candidates_and_a_directive() {
        let run = |arguments: &[&str]| {
            let script = script(Shell::Kubectl);
            let output = std::process::Command::new("sh").args(["-c", &script, "sh"]).args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let verbs = run(&["st"]);
        assert!(verbs.contains("status\tShows one cluster") && verbs.ends_with("\n:4\n"), "{verbs}");
        let flags = run(&["promote", "db", "--"]);
        assert!(flags.contains("--timeout\n") && flags.contains("--namespace\n"), "{flags}");
    }
}
