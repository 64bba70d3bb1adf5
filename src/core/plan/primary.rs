//! The instance that should be primary. The agents hand over to it by themselves; here it is said why that is not so yet.

use super::pods::{serves, waits};
use super::{Doing, Plan};
use crate::api::spec::State;
use crate::core::build::Scope;
use crate::core::world::World;

/// Says it.
pub fn plan(world: &World, scope: Scope<'_>, plan: &mut Plan) {
    let names = &scope.cluster.names;
    let (Some(wished), Some(primary)) = (scope.cluster.primary, plan.members.primary) else { return };
    if wished == primary || scope.cluster.state != State::Running {
        return;
    }
    let (name, present) = (names.instance(wished), names.instance(primary));
    if !plan.members.wanted.contains(&wished) {
        let all: Vec<String> = plan.members.wanted.iter().map(|ordinal| names.instance(*ordinal)).collect();
        plan.notice(
            "PrimaryUnknown",
            format!(
                "spec.primary names {name}, which is no instance now: name one of {}, or remove it",
                all.join(", ")
            ),
        );
    } else if serves(world, wished) {
        plan.does(Doing::Updating, format!("{present} hands over to {name}, which spec.primary names"));
    } else {
        let waits = waits(world, scope, wished);
        plan.does(
            Doing::Updating,
            format!("{present} stays primary until {name}, which spec.primary names, is ready: {waits}"),
        );
    }
}
