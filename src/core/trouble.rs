//! From what Kubernetes says of a Pod to a sentence for people that names the cause.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::world::Trouble;
use crate::api::names::{CONTAINER, CONTAINER_INJECT};

/// What keeps a Pod from running, if anything does.
pub fn of_pod(pod: &Pod) -> Option<Trouble> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    if let Some(unscheduled) = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
    {
        let message = unscheduled.message.as_deref().unwrap_or("the scheduler gave no reason");
        return Some(Trouble {
            reason: "Unschedulable".into(),
            sentence: format!("no node can run {name}: {message}"),
        });
    }
    if status.phase.as_deref() == Some("Failed") {
        let why = status.message.as_deref().or(status.reason.as_deref()).unwrap_or("no reason was given");
        return Some(Trouble { reason: "PodFailed".into(), sentence: format!("{name} ended: {why}") });
    }
    let containers = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    containers.filter(|c| c.name == CONTAINER || c.name == CONTAINER_INJECT).find_map(|c| of_container(name, c))
}

/// Reasons that pass by themselves at once.
const PASSING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

fn of_container(pod: &str, status: &ContainerStatus) -> Option<Trouble> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !PASSING.contains(reason))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    let sentence = match reason {
        "ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" | "ErrImageNeverPull" => {
            // The kubelet says in turn that it failed and that it waits before it tries again: one trouble, one sentence.
            let cause = message.split_once("ErrImagePull: ").map_or(message, |(_, cause)| cause);
            return Some(Trouble {
                reason: "ImagePullFailed".into(),
                sentence: format!("the image {} of {pod} cannot be pulled: {}", status.image, or(cause, reason)),
            });
        }
        "CrashLoopBackOff" => {
            let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            let code = last.map_or(0, |last| last.exit_code);
            let why = last.and_then(|last| last.message.as_deref().or(last.reason.as_deref())).unwrap_or("Error");
            format!(
                "the container {} of {pod} ends again and again (exit code {code}: {why}); see its log",
                status.name
            )
        }
        _ => format!("the container {} of {pod} does not start: {}", status.name, or(message, reason)),
    };
    Some(Trouble { reason: reason.to_owned(), sentence })
}

fn or<'a>(message: &'a str, reason: &'a str) -> &'a str {
    if message.is_empty() { reason } else { message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "db-1"}, "status": status})).unwrap()
    }

    #[test]
    fn each_cause_is_named() {
        let image = pod(
            &json!({"containerStatuses": [{"name": "postgres", "image": "postgres:nope", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"postgres:nope\""}}}]}),
        );
        let trouble = of_pod(&image).unwrap();
        assert_eq!(trouble.reason, "ImagePullFailed");
        assert!(trouble.sentence.contains("postgres:nope"), "{}", trouble.sentence);
        let unschedulable = pod(&json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient cpu."}]}));
        assert!(of_pod(&unschedulable).unwrap().sentence.contains("Insufficient cpu"));
        let creating = pod(
            &json!({"containerStatuses": [{"name": "postgres", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "PodInitializing"}}}]}),
        );
        assert_eq!(of_pod(&creating), None);
    }
}
