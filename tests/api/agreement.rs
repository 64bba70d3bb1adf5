//! The API server's rules and ours agree: thousands of generated objects, each given to both.
//!
//! `HELLO_SEED` repeats a run, `HELLO_OBJECTS` makes it longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{StreamExt, stream};
use hello_operator::api::HelloOperatorSpec;
use hello_operator::core::cluster::{Cluster, transition};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;

use crate::definition::{installed, object, objects};
use crate::generator::Generator;
use crate::harness::Plane;
use crate::{alone, number_from_environment};

const AT_ONCE: usize = 16;

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![
        alone(plane, "crd: its rules and ours agree on what may be created", creations),
        alone(plane, "crd: its rules and ours agree on what may be changed", changes),
    ]
}

/// What our own rules say: the sentences of everything that is wrong, or the spec.
fn ours(name: &str, spec: &Value) -> Result<HelloOperatorSpec, Vec<String>> {
    // A null means the default, as it does to the API server.
    fn without_nulls(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                fields.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), without_nulls(v))).collect()
            }
            other => other.clone(),
        }
    }
    let spec: HelloOperatorSpec = serde_json::from_value(without_nulls(spec)).map_err(|_| Vec::new())?;
    match Cluster::parse(name, &spec) {
        Ok(_) => Ok(spec),
        Err(invalid) => Err(invalid.into_iter().map(|invalid| invalid.sentence).collect()),
    }
}

/// What differs between the two answers, if anything does.
fn difference(
    theirs: Result<DynamicObject, kube::Error>,
    ours: Result<HelloOperatorSpec, Vec<String>>,
) -> Option<String> {
    match (theirs, ours) {
        (Ok(stored), Ok(spec)) => match serde_json::from_value::<HelloOperatorSpec>(stored.data["spec"].clone()) {
            Ok(read) if read == spec => None,
            Ok(read) => Some(format!("the defaults differ: {read:?} and {spec:?}")),
            Err(error) => Some(format!("what was stored cannot be read: {error}")),
        },
        (Err(kube::Error::Api(status)), Err(sentences)) => {
            // What breaks the types is told first, and alone.
            let structural = sentences.is_empty() || status.message.contains("some validation rules were not checked");
            let untold: Vec<_> =
                sentences.iter().filter(|sentence| !status.message.contains(sentence.as_str())).collect();
            (!structural && !untold.is_empty()).then(|| format!("{} does not say {untold:?}", status.message))
        }
        (Ok(_), Err(sentences)) => Some(format!("the API server accepts what we refuse: {sentences:?}")),
        (Err(error), Ok(_)) => Some(format!("we accept what the API server refuses: {error}")),
        (Err(error), Err(_)) => Some(format!("no answer: {error}")),
    }
}

fn seed() -> u64 {
    let seed = number_from_environment("HELLO_SEED").unwrap_or_else(rand::random);
    println!("HELLO_SEED={seed}");
    seed
}

fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

/// Fails with some of the differences, and says how many objects were accepted and refused.
fn judge(differences: &[String], accepted: usize, all: usize) {
    println!("{all} objects, {accepted} accepted by both");
    assert!(
        differences.is_empty(),
        "{} of {all} differ:\n{}",
        differences.len(),
        differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n")
    );
    assert!(accepted > all / 10 && accepted < all * 9 / 10, "a generator that tests little: {accepted} of {all}");
}

async fn creations(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let api = objects(client, &plane.namespace().await);
    let mut generator = Generator(StdRng::seed_from_u64(seed()));
    let count = usize::try_from(number_from_environment("HELLO_OBJECTS").unwrap_or(3_000)).unwrap();
    let cases: Vec<(String, Value)> = (0..count)
        .map(|_| {
            let name = generator.name();
            let spec = generator.spec(&name);
            (name, spec)
        })
        .collect();
    let accepted = AtomicUsize::new(0);
    let differences: Vec<String> = stream::iter(&cases)
        .map(async |(name, spec)| {
            let theirs = api.create(&dry_run(), &object(name, Some(spec))).await;
            accepted.fetch_add(usize::from(theirs.is_ok()), Ordering::Relaxed);
            difference(theirs, ours(name, spec)).map(|difference| format!("{difference}\n    {name} {spec}"))
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(async |difference| difference)
        .collect()
        .await;
    judge(&differences, accepted.into_inner(), count);
}

async fn changes(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let api = objects(client, &plane.namespace().await);
    let mut generator = Generator(StdRng::seed_from_u64(seed()));
    let count = usize::try_from(number_from_environment("HELLO_OBJECTS").unwrap_or(3_000)).unwrap();
    let mut stored: Vec<(DynamicObject, HelloOperatorSpec)> = Vec::new();
    while stored.len() < 40 {
        let name = format!("db-{}", stored.len());
        let spec = generator.spec(&name);
        if let Ok(ours) = ours(&name, &spec) {
            stored.push((api.create(&PostParams::default(), &object(&name, Some(&spec))).await.unwrap(), ours));
        }
    }
    let cases: Vec<(usize, Value)> = (0..count)
        .map(|number| {
            let which = number % stored.len();
            // A few fields of the old one replaced, so that most of it stays.
            let mut spec = stored[which].0.data["spec"].clone();
            merge(&mut spec, &generator.spec(&format!("db-{which}")));
            (which, spec)
        })
        .collect();
    let accepted = AtomicUsize::new(0);
    let differences: Vec<String> = stream::iter(&cases)
        .map(async |(which, spec)| {
            let (before, old) = &stored[*which];
            let name = before.metadata.name.as_deref().unwrap();
            let theirs = replace(&api, before, spec).await;
            accepted.fetch_add(usize::from(theirs.is_ok()), Ordering::Relaxed);
            let ours = ours(name, spec).and_then(|new| match transition(old, &new) {
                wrong if wrong.is_empty() => Ok(new),
                wrong => Err(wrong.into_iter().map(|invalid| invalid.sentence).collect()),
            });
            difference(theirs, ours).map(|difference| format!("{difference}\n    {} -> {spec}", before.data["spec"]))
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(async |difference| difference)
        .collect()
        .await;
    judge(&differences, accepted.into_inner(), count);
}

async fn replace(api: &Api<DynamicObject>, before: &DynamicObject, spec: &Value) -> Result<DynamicObject, kube::Error> {
    let mut object = before.clone();
    object.data["spec"] = spec.clone();
    api.replace(before.metadata.name.as_deref().unwrap(), &dry_run(), &object).await
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
