//! Children whose content is a function of the spec.

use super::{Action, DATA_LOSS_ACCEPTED, Doing, Plan, REPAIRED};
use crate::api::config::ClusterConfig;
use crate::api::names::ANNOTATION_ACCEPT_LOSS;
use crate::core::build::{Child, Scope, access, config as config_map, network};
use crate::core::world::{ChildId, ChildMeta, Kind, Known, Owner, World};

/// Plans them. False when so little is known that nothing else may be decided.
pub fn plan(world: &World, scope: Scope<'_>, config: &ClusterConfig, plan: &mut Plan) -> bool {
    let known = match &world.children {
        Known::Present(known) => known,
        Known::Absent => return false,
        Known::Unknown(why) => {
            plan.does(Doing::Starting, format!("waits until it is known what is there: {why}"));
            return false;
        }
    };
    let names = &scope.cluster.names;
    let config_id = ChildId::new(Kind::ConfigMap, names.config_map());
    let wanted = [
        config_map::config_map(scope, config),
        access::service_account(scope),
        access::role(scope),
        access::role_binding(scope),
        network::service_rw(scope),
        network::service_ro(scope),
        network::service_r(scope),
        network::service_headless(scope),
        network::endpoint_slice(scope, &names.endpoints_rw()),
        network::endpoint_slice(scope, &names.endpoints_ro()),
        network::pdb(scope, plan.members.run.len()),
    ];
    for child in wanted {
        one(known.get(&child.id), child, scope, plan);
    }
    loss_accepted(world, &config_id, config, plan);
    true
}

/// That a human accepts a loss goes to the agents with the ConfigMap, once: it is told then.
fn loss_accepted(world: &World, config_map: &ChildId, config: &ClusterConfig, plan: &mut Plan) {
    let before = world.config.present().and_then(|before| before.accept_loss);
    let Some(term) = config.accept_loss.filter(|term| before != Some(*term)) else { return };
    let id = config_map.to_string();
    if let Some(step) = plan.steps.iter_mut().find(|step| step.id == id) {
        step.reason = format!(
            "a human accepts that acknowledged writes may be lost at term {term} (annotation {ANNOTATION_ACCEPT_LOSS})"
        );
        step.event = Some(DATA_LOSS_ACCEPTED);
    }
}

fn one(known: Option<&ChildMeta>, child: Child, scope: Scope<'_>, plan: &mut Plan) {
    let id = child.id.to_string();
    let Some(meta) = known else {
        plan.does(Doing::Creating, format!("{id} is made"));
        // A binding to a Role that is not there yet is refused.
        let role = (child.id.kind == Kind::RoleBinding).then(|| ChildId::new(Kind::Role, child.id.name.clone()));
        let step = plan.push(id, Action::Create(child), "it is missing");
        step.needs.extend(role.map(|role| role.to_string()));
        return;
    };
    let ours = match child.id.kind {
        // The agents' rights last as long as their Lease: without them a primary whose object was deleted could not release
        // it on its way out, and a new object of the same name would have to wait for the Lease to run out.
        Kind::ServiceAccount | Kind::Role | Kind::RoleBinding => lasting(meta, &child.id, scope, plan),
        _ => may_touch(meta, &id, scope, plan),
    };
    if !ours {
        return;
    }
    // Agents write what stands in an EndpointSlice.
    if child.id.kind == Kind::EndpointSlice {
        return;
    }
    if meta.hash.as_deref() != Some(child.hash.as_str()) {
        plan.push(id, Action::Apply(child), "it is not as the spec says");
    } else if meta.edited {
        plan.push(id, Action::Apply(child), "somebody changed it").event = Some(REPAIRED);
    }
}

/// Whether a child is ours to write now; otherwise the plan says why not.
pub fn may_touch(meta: &ChildMeta, id: &str, scope: Scope<'_>, plan: &mut Plan) -> bool {
    if meta.deleting {
        plan.does(Doing::Creating, format!("waits until {id} is gone, and makes it anew"));
        return false;
    }
    match &meta.owner {
        Owner::Adoptable => true,
        Owner::Object(uid) if uid == scope.uid => true,
        Owner::Object(_) => {
            plan.does(Doing::Creating, format!("waits until {id} of an earlier object of this name is gone"));
            false
        }
        Owner::Foreign => {
            plan.notice(
                "NameTaken",
                format!("{id} exists and is not ours: delete or rename it, and this cluster takes the name"),
            );
            false
        }
    }
}

/// Whether a scratch Pod is this object's.
pub fn may_touch_pod(meta: &ChildMeta, scope: Scope<'_>) -> bool {
    matches!(&meta.owner, Owner::Object(uid) if uid == scope.uid)
}

/// Sets or removes the owner of a child that lasts as long as the volumes. True when it is ours to write.
pub fn lasting(meta: &ChildMeta, id: &ChildId, scope: Scope<'_>, plan: &mut Plan) -> bool {
    if !may_touch(meta, &id.to_string(), scope, plan) {
        return false;
    }
    let owned = matches!(meta.owner, Owner::Object(_));
    if owned != scope.lasting_owned() {
        let owner = scope.lasting_owned().then(|| scope.owner());
        let reason = if owner.is_some() {
            "storage.onDelete is Delete"
        } else {
            "storage.onDelete is Retain: it outlives the object"
        };
        plan.push(format!("owner of {id}"), Action::SetOwner { id: id.clone(), uid: meta.uid.clone(), owner }, reason);
    }
    true
}
