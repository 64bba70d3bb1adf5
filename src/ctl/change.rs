//! `promote`, `restart`, `hibernate` and `resume`: what the spec or an annotation asks for, and the wait for it.

use jiff::Timestamp;
use serde_json::json;

use super::error::Error;
use super::session::{Session, answer};
use super::view::next::{condition, current};
use super::wait::{Look, until};
use crate::api::names::{ANNOTATION_RESTART, ANNOTATION_RESTART_ONE, Names};
use crate::api::spec::{HelloOperator, State};
use crate::api::status::ElectionPhase;
use crate::config::ctl::{Patience, PromoteArgs, RestartArgs, StateArgs};

/// Makes another instance the primary.
pub async fn promote(session: &Session, args: &PromoteArgs) -> Result<(), Error> {
    let object = session.read(&args.name).await?.object;
    let (_, instance) = instance(&object, &args.instance)?;
    running(&object)?;
    let before = object.status.as_ref().and_then(|status| status.primary.clone());
    let changed = session.change(&object, json!({"spec": {"primary": instance}})).await?;
    let generation = changed.metadata.generation;
    if args.patience.no_wait {
        return answer(&format!("{instance} is asked to become the primary of {}\n", args.name));
    }
    let what = format!("{instance} did not become the primary");
    let done = until(session.api(), &args.name, &what, args.patience.timeout, |object: &HelloOperator| {
        if object.metadata.generation > generation && object.spec.primary.as_deref() != Some(instance.as_str()) {
            return Look::Never("spec.primary was changed by somebody else meanwhile".into());
        }
        let status = object.status.clone().unwrap_or_default();
        let primary = status.primary.filter(|primary| primary.instance == instance);
        let held = status.election.is_some_and(|election| election.phase == ElectionPhase::Held);
        let writes = condition(object, "WriteAvailable").is_some_and(|writes| writes.status == "True");
        match primary.filter(|_| held && writes && current(object)) {
            Some(primary) => Look::Done((primary.term, primary.timeline, status.last_failover)),
            None => Look::Still(doing(object)),
        }
    })
    .await?;
    let (term, timeline, last) = done;
    let timeline = timeline.map(|timeline| format!(", timeline {timeline}")).unwrap_or_default();
    let took = match last.filter(|last| last.term == term && last.from != instance) {
        _ if before.is_some_and(|before| before.instance == instance && before.term == term) => {
            "; it was that already".to_owned()
        }
        Some(last) => format!("; it took over from {} in {} s", last.from, last.duration_seconds),
        None => String::new(),
    };
    answer(&format!(
        "{instance} is the primary (term {term}{timeline}){took}. It stays wanted: spec.primary names it\n"
    ))
}

/// Restarts PostgreSQL.
pub async fn restart(session: &Session, args: &RestartArgs) -> Result<(), Error> {
    let object = session.read(&args.name).await?.object;
    running(&object)?;
    let (annotation, what) = match &args.instance {
        None => (ANNOTATION_RESTART.to_owned(), format!("all instances of {}", args.name)),
        Some(one) => {
            let (ordinal, instance) = instance(&object, one)?;
            (format!("{ANNOTATION_RESTART_ONE}{ordinal}"), instance)
        }
    };
    let value = Timestamp::now().to_string();
    let changed = session.change(&object, json!({"metadata": {"annotations": {annotation: value}}})).await?;
    if args.patience.no_wait {
        return answer(&format!("the restart of {what} is asked for\n"));
    }
    let before = changed.metadata.resource_version;
    let not = format!("the restart of {what} was not complete");
    let mut began = false;
    until(session.api(), &args.name, &not, args.patience.timeout, |object: &HelloOperator| {
        let fresh = object.metadata.resource_version != before;
        let progressing = condition(object, "Progressing");
        let at_it = progressing.is_some_and(|condition| condition.status == "True");
        // What it was at before is not the restart.
        began = began || fresh && at_it && progressing.is_some_and(|condition| condition.reason == "Rolling");
        match progressing {
            // The annotation is no part of the generation: that the operator has seen it shows when it begins.
            Some(condition) if !began => Look::Still(format!("waits for the operator ({})", condition.message)),
            Some(condition) if at_it => Look::Still(condition.message.clone()),
            Some(_) => Look::Done(()),
            None => Look::Still("waits for the operator".into()),
        }
    })
    .await?;
    answer(&format!("PostgreSQL of {what} was restarted\n"))
}

/// Stops the Pods and keeps the volumes.
pub async fn hibernate(session: &Session, args: &StateArgs) -> Result<(), Error> {
    let what = format!("{} was not stopped", args.name);
    state(session, args, State::Hibernated, &what, |object| phase(object) == "Hibernated").await?;
    if args.patience.no_wait {
        return answer(&format!("{} is asked to hibernate\n", args.name));
    }
    answer(&format!("{} is hibernated: its Pods are gone, its volumes stay\n", args.name))
}

/// Starts the Pods again.
pub async fn resume(session: &Session, args: &StateArgs) -> Result<(), Error> {
    let what = format!("{} was not ready", args.name);
    let ready = |object: &HelloOperator| condition(object, "Ready").is_some_and(|ready| ready.status == "True");
    state(session, args, State::Running, &what, ready).await?;
    if args.patience.no_wait {
        return answer(&format!("{} is asked to run\n", args.name));
    }
    answer(&format!("{} is ready\n", args.name))
}

async fn state(
    session: &Session,
    args: &StateArgs,
    wanted: State,
    what: &str,
    reached: impl Fn(&HelloOperator) -> bool,
) -> Result<(), Error> {
    let object = session.read(&args.name).await?.object;
    session.change(&object, json!({"spec": {"state": wanted}})).await?;
    let Patience { no_wait, timeout } = args.patience;
    if no_wait {
        return Ok(());
    }
    until(session.api(), &args.name, what, timeout, |object: &HelloOperator| {
        if object.spec.state != wanted {
            Look::Never("spec.state was changed by somebody else meanwhile".into())
        } else if current(object) && reached(object) {
            Look::Done(())
        } else {
            Look::Still(doing(object))
        }
    })
    .await
}

fn phase(object: &HelloOperator) -> &str {
    object.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// What the operator says that it does.
fn doing(object: &HelloOperator) -> String {
    if !current(object) {
        return "the operator has not looked at it yet".into();
    }
    let progress = condition(object, "Progressing").filter(|condition| condition.status == "True");
    let writes = condition(object, "WriteAvailable").filter(|condition| condition.status == "False");
    let found = progress.or(writes).or_else(|| condition(object, "Progressing"));
    found.map_or_else(|| phase(object).to_owned(), |condition| condition.message.clone())
}

/// Something can be asked of instances only while they run.
fn running(object: &HelloOperator) -> Result<(), Error> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    match object.spec.state {
        State::Running => Ok(()),
        State::Hibernated => Err(Error::Refused(format!("{name} is hibernated: kubectl hello resume {name}"))),
        State::Paused => {
            Err(Error::Refused(format!("{name} is paused, so nothing would happen: kubectl hello resume {name}")))
        }
    }
}

/// An instance, by its name or its number.
fn instance(object: &HelloOperator, said: &str) -> Result<(u8, String), Error> {
    let names = Names::new(object.metadata.name.clone().unwrap_or_default());
    let mut all: Vec<u8> = (1..).take(usize::try_from(object.spec.instances).unwrap_or(0)).collect();
    // After a removal in the middle, those that are there count as well.
    let known = object.status.iter().flat_map(|status| &status.instances);
    all.extend(known.filter_map(|instance| names.ordinal(&instance.name)));
    all.sort_unstable();
    all.dedup();
    let found = all.iter().find(|ordinal| names.instance(**ordinal) == said || ordinal.to_string() == said);
    found.map(|ordinal| (*ordinal, names.instance(*ordinal))).ok_or_else(|| {
        let all: Vec<String> = all.iter().map(|ordinal| names.instance(*ordinal)).collect();
        Error::Refused(format!("{} has no instance {said}: it has {}", names.cluster(), all.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: &serde_json::Value) -> HelloOperator {
        serde_json::from_value(json!({"apiVersion": "terry.com/v1", "kind": "HelloOperator",
            "metadata": {"name": "db", "namespace": "shop"}, "spec": spec}))
        .unwrap()
    }

    #[test]
    fn an_instance_is_known_by_its_name_and_its_number() {
        let db = object(&json!({"instances": 2}));
        assert_eq!(instance(&db, "db-2").unwrap(), (2, "db-2".into()));
        assert_eq!(instance(&db, "1").unwrap(), (1, "db-1".into()));
        let refused = instance(&db, "db-3").unwrap_err().to_string();
        assert_eq!(refused, "db has no instance db-3: it has db-1, db-2");
    }

    #[test]
    fn nothing_is_asked_of_instances_that_do_not_run() {
        let refused = running(&object(&json!({"state": "Hibernated"}))).unwrap_err().to_string();
        assert!(refused.contains("kubectl hello resume db"), "{refused}");
        assert!(running(&object(&json!({}))).is_ok());
    }
}
