//! The ConfigMap that agents read: the accepted spec, and the image's `passwd`.

use serde_json::json;

use super::{Child, Scope, annotate, child};
use crate::api::config::ClusterConfig;
use crate::api::names::{ANNOTATION_GREETED, CONFIG_KEY, PASSWD_KEY};
use crate::core::world::Kind;

/// The ConfigMap. It also says which object was greeted.
pub fn config_map(scope: Scope<'_>, config: &ClusterConfig) -> Child {
    let name = scope.cluster.names.config_map();
    let text = serde_json::to_string(config).unwrap_or_default();
    let mut body = json!({
        "metadata": scope.owned(&name),
        "data": {CONFIG_KEY: text, PASSWD_KEY: passwd(scope.cluster.uid, scope.cluster.gid)},
    });
    annotate(&mut body, ANNOTATION_GREETED, scope.uid);
    child(Kind::ConfigMap, name, body)
}

/// One line: whatever the image's own file says, `postgres` is the user that runs, so that peer authentication and
/// initdb find it.
fn passwd(uid: i64, gid: i64) -> String {
    format!("postgres:x:{uid}:{gid}:PostgreSQL:/tmp:/bin/sh\n")
}
