//! Backups and the beginning of a cluster, once validated.

use super::{Invalid, invalid};
use crate::api::agent::Lsn;
use crate::api::crd::{NO_DESTINATION, ONE_DESTINATION, ONE_SOURCE, ONE_SOURCE_STORE, ONE_TARGET};
use crate::api::spec::{
    BackupSpec, CRON, Destination, ENDPOINT, KEEP_FOR, LSN, PATH, RATE, RestoreSpec, TIME, TIMELINE, VerifySpec,
};
use crate::core::backup::Policy;
use crate::core::backup::schedule::{Impossible, Schedule};
use crate::core::quantity;

/// Smallest pace of a backup, in bytes per second.
const MIN_RATE: i128 = 64 << 10;

/// Archive and base backups.
#[derive(Debug, Clone, PartialEq)]
pub struct Backup {
    /// Where they go; None: there are none.
    pub destination: Option<Destination>,
    /// When a base backup is made. A schedule that cannot be is no mistake of the whole spec: the cluster runs without it.
    pub schedule: Option<Result<Schedule, Impossible>>,
    /// Whether no run of a schedule begins.
    pub suspend: bool,
    /// Which ones are kept.
    pub retention: Policy,
    /// Whether WAL is archived.
    pub wal_archive: bool,
    /// Seconds after which a segment is closed.
    pub archive_timeout: u32,
    /// Bytes per second that a base backup reads at most.
    pub max_bytes_per_second: Option<u64>,
    /// Regular proof.
    pub verify: Option<Verify>,
}

/// Regular proof that the newest backup can be restored.
#[derive(Debug, Clone, PartialEq)]
pub struct Verify {
    /// When.
    pub schedule: Result<Schedule, Impossible>,
    /// A statement that must succeed.
    pub query: Option<String>,
}

impl Backup {
    /// Why a schedule cannot be, if one cannot.
    pub fn impossible(&self) -> Option<&Impossible> {
        let backup = self.schedule.as_ref().and_then(|schedule| schedule.as_ref().err());
        backup.or_else(|| self.verify.as_ref().and_then(|verify| verify.schedule.as_ref().err()))
    }
}

/// What a new cluster begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    /// Where the archive is.
    pub from: RestoreFrom,
    /// The base backup to begin with.
    pub backup_id: Option<String>,
    /// The last moment.
    pub target_time: Option<String>,
    /// The last position.
    pub target_lsn: Option<Lsn>,
    /// The named point.
    pub target_name: Option<String>,
    /// The timeline to follow.
    pub target_timeline: Option<u32>,
}

impl Restore {
    /// Whether it says up to where.
    pub fn has_target(&self) -> bool {
        self.target_time.is_some() || self.target_lsn.is_some() || self.target_name.is_some()
    }
}

/// Where the archive of a restore is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreFrom {
    /// Where this HelloBackup is.
    Backup(String),
    /// There.
    Source(Box<Destination>),
}

pub(super) fn check_backup(spec: &BackupSpec, errors: &mut Vec<Invalid>) -> Backup {
    if let Some(destination) = &spec.destination {
        check_destination("spec.backup.destination", destination, ONE_DESTINATION, errors);
    } else if spec.schedule.is_some() || spec.verify.is_some() {
        errors.push(invalid("spec", NO_DESTINATION));
    }
    for (field, cron) in [
        ("spec.backup.schedule", spec.schedule.as_ref()),
        ("spec.backup.verify.schedule", spec.verify.as_ref().map(|verify| &verify.schedule)),
    ] {
        if cron.is_some_and(|cron| !is_cron(cron)) {
            errors.push(invalid(field, CRON.1));
        }
    }
    not_empty("spec.backup.timeZone", Some(&spec.time_zone), errors);
    not_empty("spec.backup.verify.query", spec.verify.as_ref().and_then(|verify| verify.query.as_deref()), errors);
    if spec.retention.keep_last.is_some_and(|count| !(1..=1000).contains(&count)) {
        errors.push(invalid("spec.backup.retention.keepLast", "use 1 to 1000 keepLast"));
    }
    if spec.retention.keep_for.as_deref().is_some_and(|long| !is_keep_for(long)) {
        errors.push(invalid("spec.backup.retention.keepFor", KEEP_FOR.1));
    }
    if !(10..=3600).contains(&spec.archive_timeout_seconds) {
        errors.push(invalid("spec.backup.archiveTimeoutSeconds", "use 10 to 3600 archiveTimeoutSeconds"));
    }
    let rate = spec.max_bytes_per_second.as_ref();
    if rate.is_some_and(|rate| quantity::nanos(&rate.0).is_none_or(|nanos| nanos < quantity::in_nanos(MIN_RATE))) {
        errors.push(invalid("spec.backup.maxBytesPerSecond", RATE.1));
    }
    let read = |cron: &str| Schedule::parse(cron, &spec.time_zone);
    Backup {
        destination: spec.destination.clone(),
        schedule: spec.schedule.as_deref().map(read),
        suspend: spec.suspend,
        retention: Policy::of(&spec.retention),
        wal_archive: spec.wal_archive,
        archive_timeout: u32::try_from(spec.archive_timeout_seconds).unwrap_or(0),
        max_bytes_per_second: rate.and_then(|rate| u64::try_from(quantity::parse(&rate.0)?).ok()),
        verify: spec
            .verify
            .as_ref()
            .map(|VerifySpec { schedule, query }| Verify { schedule: read(schedule), query: query.clone() }),
    }
}

pub(super) fn check_restore(spec: &RestoreSpec, errors: &mut Vec<Invalid>) -> Option<Restore> {
    const FIELD: &str = "spec.bootstrap.restore";
    let before = errors.len();
    let from = match (&spec.backup, &spec.source) {
        (Some(name), None) => Some(RestoreFrom::Backup(name.clone())),
        (None, Some(source)) => {
            check_destination(&format!("{FIELD}.source"), source, ONE_SOURCE_STORE, errors);
            Some(RestoreFrom::Source(Box::new(source.clone())))
        }
        (Some(_), Some(source)) => {
            check_destination(&format!("{FIELD}.source"), source, ONE_SOURCE_STORE, errors);
            None
        }
        (None, None) => None,
    };
    if from.is_none() {
        errors.push(invalid("spec", ONE_SOURCE));
    }
    let targets = [&spec.target_time, &spec.target_lsn, &spec.target_name];
    if targets.into_iter().flatten().count() > 1 {
        errors.push(invalid("spec", ONE_TARGET));
    }
    for (field, text) in [("backup", &spec.backup), ("backupId", &spec.backup_id), ("targetName", &spec.target_name)] {
        not_empty(&format!("{FIELD}.{field}"), text.as_deref(), errors);
    }
    if spec.target_time.as_deref().is_some_and(|text| !is_time(text)) {
        errors.push(invalid(format!("{FIELD}.targetTime"), TIME.1));
    }
    let target_lsn = spec.target_lsn.as_deref().and_then(lsn);
    if spec.target_lsn.is_some() && target_lsn.is_none() {
        errors.push(invalid(format!("{FIELD}.targetLsn"), LSN.1));
    }
    let target_timeline = spec.target_timeline.and_then(|timeline| u32::try_from(timeline).ok()).filter(|t| *t > 0);
    if spec.target_timeline.is_some() && target_timeline.is_none() {
        errors.push(invalid(format!("{FIELD}.targetTimeline"), TIMELINE.1));
    }
    if errors.len() > before {
        return None;
    }
    Some(Restore {
        from: from?,
        backup_id: spec.backup_id.clone(),
        target_time: spec.target_time.clone(),
        target_lsn,
        target_name: spec.target_name.clone(),
        target_timeline,
    })
}

fn check_destination(field: &str, destination: &Destination, one: &str, errors: &mut Vec<Invalid>) {
    let Destination { s3, gcs, azure, volume } = destination;
    if [s3.is_some(), gcs.is_some(), azure.is_some(), volume.is_some()].into_iter().filter(|given| *given).count() != 1
    {
        errors.push(invalid("spec", one));
    }
    let mut text = |name: &str, value: Option<&str>| not_empty(&format!("{field}.{name}"), value, errors);
    if let Some(s3) = s3 {
        text("s3.bucket", Some(&s3.bucket));
        text("s3.region", Some(&s3.region));
        if let Some(keys) = &s3.credentials {
            text("s3.credentials.secret", Some(&keys.secret));
            text("s3.credentials.accessKeyId", Some(&keys.access_key_id));
            text("s3.credentials.secretAccessKey", Some(&keys.secret_access_key));
            text("s3.credentials.sessionToken", keys.session_token.as_deref());
        }
        text("s3.ca.name", s3.ca.as_ref().map(|ca| ca.name.as_str()));
        text("s3.ca.key", s3.ca.as_ref().map(|ca| ca.key.as_str()));
    }
    if let Some(gcs) = gcs {
        text("gcs.bucket", Some(&gcs.bucket));
        text("gcs.credentials.name", gcs.credentials.as_ref().map(|key| key.name.as_str()));
        text("gcs.credentials.key", gcs.credentials.as_ref().map(|key| key.key.as_str()));
    }
    if let Some(azure) = azure {
        text("azure.account", Some(&azure.account));
        text("azure.container", Some(&azure.container));
        text("azure.accountKey.name", azure.account_key.as_ref().map(|key| key.name.as_str()));
        text("azure.accountKey.key", azure.account_key.as_ref().map(|key| key.key.as_str()));
    }
    text("volume.claim", volume.as_ref().map(|volume| volume.claim.as_str()));
    for (name, path) in [
        ("s3", s3.as_ref().and_then(|s3| s3.path.as_ref())),
        ("gcs", gcs.as_ref().and_then(|gcs| gcs.path.as_ref())),
        ("azure", azure.as_ref().and_then(|azure| azure.path.as_ref())),
        ("volume", volume.as_ref().and_then(|volume| volume.path.as_ref())),
    ] {
        if path.is_some_and(|path| !is_path(path)) {
            errors.push(invalid(format!("{field}.{name}.path"), PATH.1));
        }
    }
    if s3.as_ref().and_then(|s3| s3.endpoint.as_ref()).is_some_and(|endpoint| !is_endpoint(endpoint)) {
        errors.push(invalid(format!("{field}.s3.endpoint"), ENDPOINT.1));
    }
}

fn not_empty(field: &str, text: Option<&str>, errors: &mut Vec<Invalid>) {
    if text.is_some_and(str::is_empty) {
        errors.push(invalid(field, "should be at least 1 chars long"));
    }
}

fn is_cron(text: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"*,/-".contains(&b);
    let fields: Vec<&str> = text.split(' ').filter(|field| !field.is_empty()).collect();
    fields.len() == 5
        && fields.iter().all(|field| field.bytes().all(known))
        && !text.starts_with(' ')
        && !text.ends_with(' ')
}

fn is_keep_for(text: &str) -> bool {
    let Some((number, unit)) = text.split_at_checked(text.len().saturating_sub(1)) else { return false };
    ["s", "m", "h", "d", "w"].contains(&unit)
        && (1..=9).contains(&number.len())
        && number.bytes().all(|b| b.is_ascii_digit())
        && !number.starts_with('0')
}

fn is_path(text: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"._=/-".contains(&b);
    !text.is_empty()
        && text.bytes().all(known)
        && !text.contains("//")
        && text.split('/').all(|part| part != "." && part != "..")
}

fn is_endpoint(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@']))
}

fn lsn(text: &str) -> Option<Lsn> {
    let half = |text: &str| (1..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let (high, low) = text.split_once('/')?;
    (half(high) && half(low)).then(|| text.parse().ok())?
}

/// The pattern of the CRD, piece by piece.
fn is_time(text: &str) -> bool {
    let Some((head, rest)) = text.split_at_checked(19) else { return false };
    let shape = head.bytes().zip("0000-00-00T00:00:00".bytes()).all(|(have, want)| match want {
        b'0' => have.is_ascii_digit(),
        b'T' => have == b'T' || have == b' ',
        other => have == other,
    });
    let number = |from: usize, to: usize| head.get(from..to).and_then(|digits| digits.parse::<u8>().ok());
    let within = |from, to, least, most| number(from, to).is_some_and(|value| (least..=most).contains(&value));
    let fields = within(5, 7, 1, 12) && within(8, 10, 1, 31) && within(11, 13, 0, 23);
    let fields = fields && within(14, 16, 0, 59) && within(17, 19, 0, 59);
    let zone = match rest.strip_prefix('.') {
        None => rest,
        Some(fraction) => {
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            match fraction.get(digits..) {
                Some(zone) if (1..=6).contains(&digits) => zone,
                _ => return false,
            }
        }
    };
    shape && fields && is_zone(zone)
}

fn is_zone(text: &str) -> bool {
    let offset = text.strip_prefix(['+', '-']).and_then(|offset| offset.split_once(':'));
    let two = |text: &str, most| {
        text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u8>().is_ok_and(|n| n <= most)
    };
    text == "Z" || offset.is_some_and(|(hours, minutes)| two(hours, 14) && two(minutes, 59))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::api::spec::HelloOperatorSpec;
    use crate::core::cluster::Cluster;

    fn parse(spec: Value) -> Result<Cluster, Vec<String>> {
        let spec: HelloOperatorSpec = serde_json::from_value(spec).unwrap();
        Cluster::parse("db", &spec).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    fn backup(fields: Value) -> Vec<String> {
        let mut backup = json!({"destination": {"s3": {"bucket": "b"}}});
        backup.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        parse(json!({"backup": backup})).err().unwrap_or_default()
    }

    fn restore(fields: &Value) -> Vec<String> {
        parse(json!({"bootstrap": {"restore": fields}})).err().unwrap_or_default()
    }

    #[test]
    fn a_destination_is_exactly_one_and_schedules_need_one() {
        assert!(backup(json!({"schedule": "0 3 * * *"})).is_empty());
        assert!(
            parse(json!({"backup": {"schedule": "0 3 * * *"}})).unwrap_err()[0].contains("need a backup.destination")
        );
        let two = json!({"destination": {"s3": {"bucket": "b"}, "volume": {"claim": "c"}}});
        for destination in [json!({"destination": {}}), two] {
            assert!(backup(destination)[0].contains("exactly one of s3"));
        }
    }

    #[test]
    fn an_impossible_schedule_is_no_reason_not_to_run() {
        let cluster =
            parse(json!({"backup": {"destination": {"s3": {"bucket": "b"}}, "schedule": "0 3 30 2 *"}})).unwrap();
        assert!(cluster.backup.impossible().unwrap().to_string().contains("30 February"));
        let zone = parse(
            json!({"backup": {"destination": {"s3": {"bucket": "b"}}, "schedule": "0 3 * * *", "timeZone": "Mars"}}),
        );
        assert!(zone.unwrap().backup.impossible().unwrap().to_string().contains("IANA"));
    }

    #[test]
    fn each_field_tells_what_to_write() {
        for (fields, sentence) in [
            (json!({"schedule": "daily"}), "use five fields of cron"),
            (json!({"schedule": "0 3 * * * "}), "use five fields of cron"),
            (json!({"verify": {"schedule": "0 3 * *"}}), "use five fields of cron"),
            (json!({"timeZone": ""}), "at least 1 chars"),
            (json!({"retention": {"keepLast": 0}}), "use 1 to 1000 keepLast"),
            (json!({"retention": {"keepFor": "30"}}), "such as 30d"),
            (json!({"retention": {"keepFor": "030d"}}), "such as 30d"),
            (json!({"archiveTimeoutSeconds": 5}), "use 10 to 3600"),
            (json!({"maxBytesPerSecond": "1k"}), "at least 64Ki"),
            (json!({"destination": {"s3": {"bucket": ""}}}), "at least 1 chars"),
            (json!({"destination": {"s3": {"bucket": "b", "path": "a/../b"}}}), "use a path"),
            (json!({"destination": {"volume": {"claim": "c", "path": "a//b"}}}), "use a path"),
            (json!({"destination": {"s3": {"bucket": "b", "endpoint": "minio:9000"}}}), "use an address"),
            (json!({"destination": {"s3": {"bucket": "b", "endpoint": "https://u:p@minio"}}}), "use an address"),
        ] {
            let told = backup(fields.clone());
            assert!(told.len() == 1 && told[0].contains(sentence), "{fields}: {told:?}");
        }
    }

    #[test]
    fn a_restore_has_one_source_and_at_most_one_target() {
        let source = json!({"s3": {"bucket": "b"}});
        assert!(restore(&json!({"backup": "x"})).is_empty());
        assert!(restore(&json!({"source": source, "targetTime": "2026-11-30T10:01:00.5+01:00"})).is_empty());
        for (fields, sentence) in [
            (json!({}), "exactly one of backup"),
            (json!({"backup": "x", "source": source}), "exactly one of backup"),
            (json!({"source": {}}), "source must name exactly one"),
            (json!({"backup": "x", "targetName": "n", "targetLsn": "0/1"}), "at most one"),
            (json!({"backup": "x", "targetTime": "2026-11-30"}), "with its zone"),
            (json!({"backup": "x", "targetTime": "2026-11-30T10:01:00"}), "with its zone"),
            (json!({"backup": "x", "targetTime": "2026-13-30T10:01:00Z"}), "with its zone"),
            (json!({"backup": "x", "targetTime": "2026-11-30T10:01:00.1234567Z"}), "with its zone"),
            (json!({"backup": "x", "targetTime": "2026-11-30T10:01:00+1:00"}), "with its zone"),
            (json!({"backup": "x", "targetLsn": "0/+1"}), "WAL position"),
            (json!({"backup": "x", "targetLsn": "123456789/1"}), "WAL position"),
            (json!({"backup": "x", "targetTimeline": 0}), "timeline of at least 1"),
        ] {
            let told = restore(&fields);
            assert!(told.len() == 1 && told[0].contains(sentence), "{fields}: {told:?}");
        }
    }
}
