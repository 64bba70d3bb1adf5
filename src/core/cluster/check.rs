//! The rules of each field, with what to write instead.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Failover, Invalid, MIN_VOLUME, VERSIONS, invalid};
use crate::api::config::LeaseBounds;
use crate::api::crd::{PRIMARY, RENEW_DEADLINE, RETRY_PERIOD};
use crate::api::names::{MAX_INSTANCES, MAX_NAME, Names};
use crate::api::owned;
use crate::api::spec::{Durability, FailoverSpec, HelloOperatorSpec, IntOrText, STOP_SECONDS};
use crate::core::quantity;

pub(super) fn check_name(name: &str, errors: &mut Vec<Invalid>) {
    if name.len() > MAX_NAME {
        errors.push(invalid(
            "metadata.name",
            format!("use a name of at most {MAX_NAME} characters, so that the names made from it stay valid"),
        ));
    }
    let bytes = name.as_bytes();
    let inner = bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
    let ends = bytes.first().is_some_and(u8::is_ascii_lowercase) && bytes.last().is_some_and(|b| *b != b'-');
    if !(inner && ends) {
        errors.push(invalid(
            "metadata.name",
            "use a name that begins with a letter and has only lower case letters, digits and hyphens (no dots), such as my-helloworld",
        ));
    }
}

pub(super) fn version_number(version: &IntOrText) -> Option<i64> {
    match version {
        IntOrText::Int(number) => Some(*number),
        IntOrText::Text(text) => text.parse().ok(),
    }
}

pub(super) fn check_version(version: &IntOrText, errors: &mut Vec<Invalid>) -> u16 {
    let found = VERSIONS.into_iter().find(|supported| match version {
        IntOrText::Int(number) => *number == i64::from(*supported),
        IntOrText::Text(text) => *text == supported.to_string(),
    });
    found.unwrap_or_else(|| {
        errors.push(invalid("spec.version", "use a version that is supported: 15, 16, 17 or 18"));
        0
    })
}

pub(super) fn check_instances(instances: i32, errors: &mut Vec<Invalid>) -> u8 {
    if instances == 0 {
        errors.push(invalid(
            "spec.instances",
            "instances cannot be 0: to stop the Pods and keep the data, say state: Hibernated",
        ));
        return 0;
    }
    u8::try_from(instances).ok().filter(|count| *count <= MAX_INSTANCES).unwrap_or_else(|| {
        errors.push(invalid("spec.instances", "use 1 to 9 instances"));
        0
    })
}

pub(super) fn check_sync_replicas(spec: &HelloOperatorSpec, errors: &mut Vec<Invalid>) -> u8 {
    let k = spec.replication.sync_replicas;
    if !(1..=8).contains(&k) {
        errors.push(invalid("spec.replication.syncReplicas", "use 1 to 8 syncReplicas"));
        return 0;
    }
    if spec.replication.durability == Some(Durability::Quorum) && k >= spec.instances {
        errors.push(invalid(
            "spec",
            "with durability Quorum, syncReplicas must be smaller than instances: lower replication.syncReplicas, raise instances, or say replication.durability: Async",
        ));
    }
    u8::try_from(k).unwrap_or(0)
}

pub(super) fn check_primary(name: &str, primary: Option<&str>, errors: &mut Vec<Invalid>) -> Option<u8> {
    let primary = primary?;
    let ordinal = Names::new(name).ordinal(primary);
    if ordinal.is_none() {
        errors.push(invalid("spec.primary", PRIMARY));
    }
    ordinal
}

pub(super) fn check_failover(spec: &FailoverSpec, errors: &mut Vec<Invalid>) -> Failover {
    let mut seconds = |field: &str, value: i32, least: i32, most: i32| {
        if !(least..=most).contains(&value) {
            errors.push(invalid(format!("spec.failover.{field}"), format!("use {least} to {most} {field}")));
        }
        u32::try_from(value).unwrap_or(0)
    };
    let bounds = LeaseBounds {
        duration: seconds("leaseDurationSeconds", spec.lease_duration_seconds, 8, 300),
        renew_deadline: seconds("renewDeadlineSeconds", spec.renew_deadline_seconds, 5, 297),
        retry_period: seconds("retryPeriodSeconds", spec.retry_period_seconds, 1, 60),
    };
    if spec.renew_deadline_seconds.saturating_add(STOP_SECONDS) >= spec.lease_duration_seconds {
        errors.push(invalid("spec", RENEW_DEADLINE));
    }
    if spec.retry_period_seconds.saturating_mul(2) >= spec.renew_deadline_seconds {
        errors.push(invalid("spec", RETRY_PERIOD));
    }
    let bytes = quantity::nanos(&spec.max_lag_bytes.0).filter(|nanos| *nanos >= 0);
    let bytes = bytes.and_then(|_| u64::try_from(quantity::parse(&spec.max_lag_bytes.0)?).ok());
    let max_lag = bytes.unwrap_or_else(|| {
        errors.push(invalid(
            "spec.failover.maxLagBytes",
            "use a number of bytes, such as 16Mi; 0 lets only a replica that has everything take over",
        ));
        0
    });
    Failover { enabled: spec.enabled, bounds, max_lag }
}

pub(super) fn check_size(field: &str, size: &Quantity, errors: &mut Vec<Invalid>) -> u64 {
    let enough = quantity::nanos(&size.0).is_some_and(|nanos| nanos >= quantity::in_nanos(MIN_VOLUME));
    let bytes = quantity::parse(&size.0).filter(|_| enough);
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_else(|| {
        errors.push(invalid(field, "use a size of at least 32Mi, such as 10Gi"));
        0
    })
}

pub(super) fn check_parameters(parameters: &BTreeMap<String, IntOrText>, errors: &mut Vec<Invalid>) {
    const FIELD: &str = "spec.postgresql.parameters";
    if !parameters.keys().all(|key| is_setting(key)) {
        errors.push(invalid(
            FIELD,
            "use names of settings as PostgreSQL writes them, in lower case, such as work_mem or auto_explain.log_min_duration",
        ));
    }
    for owned in parameters.keys().filter_map(|key| owned::find(key)) {
        errors.push(invalid(FIELD, owned.sentence()));
    }
}

fn is_setting(key: &str) -> bool {
    fn part(text: &str) -> bool {
        text.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    }
    match key.split_once('.') {
        Some((class, name)) => part(class) && part(name),
        None => part(key),
    }
}

pub(super) fn check_hba(line: &str, errors: &mut Vec<Invalid>) {
    const KINDS: [&str; 6] = ["local", "host", "hostssl", "hostnossl", "hostgssenc", "hostnogssenc"];
    let kind = line.split_once([' ', '\t']).map(|(kind, _)| kind);
    if !kind.is_some_and(|kind| KINDS.contains(&kind)) || line.contains(['\n', '\r']) {
        errors.push(invalid(
            "spec.postgresql.hba",
            "write one line of pg_hba.conf, such as: hostssl all all 10.0.0.0/8 scram-sha-256",
        ));
    }
}

const RESERVED: [&str; 5] = ["postgres", "template0", "template1", "streaming_replica", "public"];

pub(super) fn check_identifier(field: &str, name: &str, errors: &mut Vec<Invalid>) {
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let inner = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !(begins && inner) {
        errors.push(invalid(field, "use lower case letters, digits and underscores, beginning with a letter"));
    }
    if name.starts_with("pg_") || RESERVED.contains(&name) {
        errors.push(invalid(field, "that name belongs to PostgreSQL or to the operator: choose another, such as app"));
    }
}

pub(super) fn is_cidr(range: &str) -> bool {
    let Some((address, bits)) = range.split_once('/') else { return false };
    let Ok(address) = address.parse::<std::net::IpAddr>() else { return false };
    // As Kubernetes does: an IPv4 address in the clothes of an IPv6 one is neither.
    if matches!(address, std::net::IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        return false;
    }
    let canonical =
        !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
    let most = if address.is_ipv4() { 32 } else { 128 };
    canonical && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}
